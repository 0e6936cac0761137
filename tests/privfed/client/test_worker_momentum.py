"""Worker momentum: what clients send, whose rules may aggregate it, and what it costs privacy."""

import itertools

import numpy as np
import pytest
import torch
from helpers import Rounds, population, rows_of, set_fields, trainer
from lanes import every_case
from scipy import stats
from small import same_run, small, stop_after, trained

from accounting.accountants import epsilon
from accounting.events import Event
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled
from defenses.on_rows.median import Median
from privfed.client.objective import Sgd, Work
from privfed.client.objectives.worker_momentum import WorkerMomentum
from privfed.core.errors import Broken, Refused
from privfed.core.registry import BUILT_IN
from privfed.core.streams import Streams
from privfed.plan.plan import plan
from privfed.privacy.clipping import clip_rows
from privfed.privacy.mechanism import BoundedRows
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.privacy.mechanisms.none import NoPrivacy
from privfed.round.round import play, run_round
from privfed.run.train import resume

SIZES = (3, 9, 4, 6)
MOMENTUM = ("client.objective=worker_momentum", "data.setting=cross_silo")
OPEN = ("privacy.mechanism=none", *MOMENTUM)
SLOTS = ("cohort.sampler=allocation", "cohort.slots=4", "cohort.size=0")
SEEDED = "run.randomness=seeded"


def sent(objective, updates):
    """What one client `[rounds, d]` sends that trains to these updates, round after round."""
    params, state, rows = torch.zeros(updates.shape[1]), torch.zeros(1, updates.shape[1]), []
    for number, update in enumerate(updates):
        work = Work(torch.ones(1), 0.1, returning=torch.tensor([number > 0]))
        row, state = objective.message(params + update[None], {"params": params}, state, work)
        rows.append(row[0])
    return torch.stack(rows)


@pytest.mark.parametrize(
    "start, wanted", [("update", [8.0, 6.0, 4.5]), ("zero", [2.0, 1.5, 1.125])]
)
def test_a_momentum_by_hand(start, wanted):
    """beta = 3/4: m_1 is u_1 or u_1 / 4, and then three quarters of the last and a quarter of u."""
    objective = WorkerMomentum(momentum=0.75, start=start)
    assert sent(objective, torch.tensor([[8.0], [0.0], [0.0]]))[:, 0].tolist() == wanted
    constant = sent(objective, torch.full((30, 1), 8.0))[:, 0]
    assert float(constant[-1]) == pytest.approx(8.0, rel=1e-3)


@pytest.mark.parametrize("way", ["stacked", "loop"])
def test_with_one_step_a_round_it_is_the_published_momentum_of_gradients(tmp_path, way):
    """Karimireddy, He & Jaggi 2021, Algorithm 1, with a coordinate-wise median, in plain loops."""
    beta, lr = 0.9, 0.5
    rounds = Rounds(tmp_path, SIZES, size=4, objective=WorkerMomentum(momentum=beta),
                    mechanism=NoPrivacy(), rule=Median())  # fmt: skip
    set_fields(rounds.local, epochs=1, batch_size=9, way=way)
    federation, net = rounds.local.federation, rounds.local.network
    x, momenta = rounds.state.params.clone(), [None] * 4
    for _ in range(3):
        for client in range(4):
            start, end = federation.offsets[client : client + 2]
            leaf = x.clone().requires_grad_()
            examples = federation.examples
            net.losses(leaf, examples.x[start:end], examples.y[start:end]).mean().backward()
            before = momenta[client]
            gradient = leaf.grad
            momenta[client] = gradient if before is None else beta * before + (1 - beta) * gradient
        middle = torch.stack(momenta).sort(0).values[1:3].mean(0)
        x = x - lr * middle
    torch.testing.assert_close(rounds.run(3).params, x, rtol=1e-3, atol=1e-5)


def test_no_momentum_is_plain_local_sgd(tmp_path):
    ends = [
        Rounds(tmp_path / str(number), objective=objective, mechanism=NoPrivacy()).run(4).params
        for number, objective in enumerate((WorkerMomentum(momentum=0.0), Sgd()))
    ]
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-6)


def test_who_is_not_drawn_keeps_its_momentum(tmp_path):
    rounds = Rounds(tmp_path, SIZES, size=2, objective=WorkerMomentum(), mechanism=NoPrivacy())
    d, everybody = rounds.local.network.shapes.length, np.arange(4)
    held, there = torch.zeros(4, d), np.zeros(4, dtype=bool)
    state, waited = rounds.state, 0
    for round in range(1, 7):
        state = run_round(round, rounds.algorithm, state, rounds.world)
        drawn = rounds.algorithm.draw(round, rounds.world.population, rounds.world.streams).clients
        now, seen = rounds.world.states.gather(everybody, torch.zeros(d))
        others = np.setdiff1d(everybody, drawn)
        assert torch.equal(now[others], held[others])
        waited += there[others].sum()
        there[drawn] = True
        assert seen.tolist() == there.tolist()
        held = now
    assert waited > 0


def test_the_servers_root_set_has_no_memory():
    params = torch.ones(3)
    work = Work(torch.ones(1), 0.1)
    row, state = WorkerMomentum().message(params[None] + 2, {"params": params}, None, work)
    assert row.tolist() == [[2.0, 2.0, 2.0]]
    assert state is None


RULES = {
    "norm_bound": ("aggregation.radius=1.0",),
    "centered_clipping": ("aggregation.radius=1.0",),
    "sign_majority": ("aggregation.move=0.01",),
    "fltrust": ("aggregation.root=3",),
    "monna": ("aggregation.root=3",),
}


@pytest.mark.parametrize("rule", list(BUILT_IN["rule"]))
def test_every_rule_takes_momenta(rule, tmp_path):
    keys = (*OPEN, f"aggregation.rule={rule}", *RULES.get(rule, ()), "cohort.sampler=full",
            "cohort.size=0", "run.rounds=2")  # fmt: skip
    assert trained(tmp_path / "run", *keys).updates == 2


@every_case("objective", ["scaffold", "feddyn", "fedcurv"])
def test_rules_on_rows_refuse_what_the_server_sums(objective):
    keys = (f"client.objective={objective}", "data.setting=cross_silo", "aggregation.rule=median")
    with pytest.raises(Refused, match="sends more than an update"):
        plan(small("privacy.mechanism=none", *keys))


@pytest.mark.parametrize("attack", ["sign_flip", "alie", "label_flip", "mimic"])
def test_attackers_have_a_momentum_too_and_runs_resume_exactly(attack, tmp_path, monkeypatch):
    keys = (*OPEN, SEEDED, "aggregation.rule=trimmed_mean", "aggregation.byzantine=1",
            'aggregation.before=["nnm"]', f"attack.name={attack}", "attack.fraction=0.25",
            "cohort.sampler=full", "cohort.size=0")  # fmt: skip
    trained(tmp_path / "whole", *keys)
    with monkeypatch.context() as patched:
        stop_after(4, patched)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "cut", *keys)
    resume(tmp_path / "cut", lambda stored: stored)
    same_run(tmp_path / "whole", tmp_path / "cut")


@every_case(
    "keys",
    [
        ("cohort.availability=groups", "cohort.groups=2"),
        ("cohort.dropout=0.3",),
        ("aggregation.weights=examples",),
        ("cohort.sampler=by_size", "aggregation.weights=uniform"),
    ],
    ids=lambda keys: keys[0],
)
def test_who_is_absent_waits_and_rows_may_weigh_what_they_like(keys, tmp_path):
    assert trained(tmp_path / "run", *OPEN, *keys).updates == 7


# What it costs privacy.


@every_case(
    "keys, why",
    [
        (("client.objective=worker_momentum",), "same clients have to return"),
        ((*MOMENTUM, "cohort.sampler=fixed_size"), "no privacy amplification"),
        ((*MOMENTUM, *SLOTS), "no privacy amplification"),
        ((*MOMENTUM, "aggregation.rule=median"), "local_gaussian"),
    ],
    ids=lambda keys: str(keys)[-40:],
)
def test_what_has_no_proof_is_refused(keys, why):
    with pytest.raises(Refused, match=why):
        plan(small(*keys))


@every_case(
    "keys",
    [
        (),
        ("cohort.sampler=full", "cohort.size=0"),
        ("cohort.sampler=cyclic", "cohort.separation=3", "cohort.size=0"),
        ("aggregation.rule=geometric_median", "aggregation.passes=2"),
        ("privacy.mechanism=local_gaussian", "aggregation.rule=median"),
    ],
    ids=lambda keys: str(keys[:1]),
)
def test_its_event_is_that_of_plain_local_sgd(keys):
    assert plan(small(*MOMENTUM, *keys)).event == plan(small(*keys)).event


def test_nobodys_momentum_depends_on_who_else_is_there():
    """Given what was broadcast: the ground on which a memory of one's own costs no privacy."""
    local = trainer(population(SIZES))
    set_fields(local, objective=WorkerMomentum())
    params = local.network.initial_params
    own = torch.randn(4, len(params), generator=torch.Generator().manual_seed(0))

    def after(ids):
        keys = Streams(1).at("shuffle", 1, ids)
        there = torch.ones(len(ids), dtype=torch.bool)
        rows, states = local.train(ids, {"params": params}, own[ids], keys, returning=there)
        return dict(zip(ids.tolist(), zip(rows, states, strict=True), strict=True))

    everybody = after(np.arange(4))
    for client in range(4):
        for other, (row, state) in after(np.delete(np.arange(4), client)).items():
            torch.testing.assert_close(row, everybody[other][0])
            torch.testing.assert_close(state, everybody[other][1])


def one_client_moves_a_sum_by_one_clip(folder, clip=0.02):
    """Four rounds with everybody, and with each client gone, given what everybody's released."""

    def played(gone, past=None):
        sizes = [0 if client == gone else n for client, n in enumerate(SIZES)]
        rounds = Rounds(folder / f"{gone}", sizes, federation=population(sizes), size=4, noise=0.0,
                        clip=clip, lr=5.0, objective=WorkerMomentum())  # fmt: skip
        states = [rounds.state]
        for round in (1, 2, 3, 4):
            before = (past or states)[round - 1]
            states.append(run_round(round, rounds.algorithm, before, rounds.world))
        return states, rounds.released_so_far()

    states, everybody = played(None)
    for client in range(len(SIZES)):
        _, without = played(client, states)
        moved = np.linalg.norm(everybody - without, axis=1) * len(SIZES)
        assert (moved <= clip * (1 + 1e-5)).all(), f"client {client} moved the sum by {moved}"
        assert moved[0] > 0.9 * clip, "nothing was clipped: this client proves no guarantee"


def test_a_client_with_its_whole_history_moves_a_round_by_one_clip(tmp_path):
    one_client_moves_a_sum_by_one_clip(tmp_path)


def no_clip(monkeypatch):
    """Rows are sent as long as they are."""
    monkeypatch.setattr(
        CentralGaussian, "bound", lambda self, rows, *_: BoundedRows(rows, self.clip)
    )


def updates_clipped_before_they_add_up(monkeypatch):
    """A momentum of clipped updates, each added at full length, which nothing bounds any more."""

    def message(self, w, broadcast, state, work):
        clipped = clip_rows(w - broadcast["params"], 0.02).rows
        return (after := self.momentum * state + clipped), after

    monkeypatch.setattr(WorkerMomentum, "message", message)
    no_clip(monkeypatch)


@pytest.mark.parametrize("broken", [no_clip, updates_clipped_before_they_add_up])
def test_a_momentum_without_a_clip_of_its_own_is_caught(broken, tmp_path, monkeypatch):
    broken(monkeypatch)
    with pytest.raises(AssertionError, match="moved the sum by"):
        one_client_moves_a_sum_by_one_clip(tmp_path)


RATE, NOISE = 0.3, 1.0
GRID = np.linspace(-9.0, 9.0, 361)
WIDTH = GRID[1] - GRID[0]
UPDATES = [(1.0, 1.0), (1.0, -1.0), (5.0, -5.0), (-5.0, 0.5), (0.2, 5.0)]


def clipped(rows):
    return clip_rows(rows, 1.0).rows


def bare(rows):
    return rows


def coins(stays):
    """Probabilities of taking part in rounds 1 and 2: independent coins, or the first for both."""
    for first, second in itertools.product((0, 1), repeat=2):
        each = [RATE if coin else 1 - RATE for coin in (first, second)]
        yield first, second, (each[0] * (first == second) if stays else each[0] * each[1])


def deltas(updates, level, bound=clipped, stays=False):
    """Both hockey-stick divergences at e^level of two rounds with and without one client.

    One coordinate, noise of deviation `NOISE`; what the client sends in round 2 depends on whether
    it took part in round 1, which nobody is told. Midpoints on a grid of two releases.
    """
    objective = WorkerMomentum(momentum=0.5)
    after = bound(sent(objective, torch.tensor(updates)[:, None]))[:, 0].tolist()
    fresh = float(bound(sent(objective, torch.tensor(updates[1:])[:, None]))[0, 0])

    def density(first, second):
        of_first, of_second = (
            stats.norm.pdf(GRID, mean, NOISE) * WIDTH for mean in (first, second)
        )
        return np.outer(of_first, of_second)

    absent = density(0.0, 0.0)
    present = np.zeros_like(absent)
    for first, second, probability in coins(stays):
        sends = after[1] if first else fresh
        present += probability * density(first * after[0], second * sends)
    factor = np.exp(level)
    return (
        np.maximum(present - factor * absent, 0).sum(),
        np.maximum(absent - factor * present, 0).sum(),
    )


def claimed(delta):
    """Epsilon of two rounds of plain local SGD under a Poisson sample."""
    return epsilon({Event(PoissonSampled(RATE, Gaussian(NOISE)), "poisson"): 2}, delta, "pld")


@every_case("updates", UPDATES)
@every_case("delta", [1e-1, 1e-2, 1e-4])
def test_two_rounds_of_any_momentum_cost_no_more_than_two_of_any_update(updates, delta):
    assert max(deltas(updates, claimed(delta))) <= delta * (1 + 1e-3)


def test_the_bound_is_met_and_a_clip_skipped_or_a_coin_that_remembers_is_refuted():
    level = claimed(1e-2)
    assert max(deltas((1.0, 1.0), level)) > 0.9e-2
    assert max(deltas((2.0, 2.0), level, bound=bare)) > 1.5e-2
    assert max(deltas((1.0, 1.0), level, stays=True)) > 1.2e-2


def test_a_lost_memory_is_no_new_start(tmp_path):
    """What clients remembered lies in private/, and without it a run does not go on."""
    trained(tmp_path / "run", *MOMENTUM, "run.rounds=3")
    (tmp_path / "run" / "private" / "settled.f32").unlink()
    with pytest.raises(Broken, match="clients' states"):
        resume(tmp_path / "run", lambda stored: stored.with_run(rounds=7))


def test_rows_that_a_round_shows_are_momenta(tmp_path):
    rounds = Rounds(tmp_path, SIZES, size=4, objective=WorkerMomentum(start="zero"), noise=0.0)
    rounds.world.states.begin(1)
    exchange = next(play(rounds.algorithm, 1, rounds.state))
    cohort = rounds.algorithm.draw(1, rounds.world.population, rounds.world.streams)
    plain = Rounds(tmp_path / "plain", SIZES, size=4, objective=Sgd(), noise=0.0)
    bare_rows = rows_of(plain.world.executor, exchange, cohort)
    momenta = rows_of(rounds.world.executor, exchange, cohort)
    torch.testing.assert_close(momenta, 0.1 * bare_rows, rtol=1e-4, atol=1e-6)
