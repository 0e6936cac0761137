"""Rounds of compressed updates: what a client can move, what is charged, refused and kept."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from commands import run
from helpers import Rounds, rows_of, set_fields
from lanes import every_case, mostly_slow
from papers import full_batches, quadratics
from small import SMALL, model, same_run, small, trained

from accounting.ledger import Ledger
from privfed.client.autotune import first_broadcast
from privfed.client.compression.compressed import compressed
from privfed.client.compression.compression import Sending, Space
from privfed.client.compression.count_sketch import CountSketch
from privfed.client.compression.linear import RandomMask
from privfed.client.compression.low_rank import LowRank
from privfed.client.compression.power_sgd import PowerSgd
from privfed.client.compression.qsgd import Sign
from privfed.client.compression.top_k import TopK
from privfed.client.descent import LocalStep
from privfed.client.exchange import Exchange
from privfed.client.objective import Sgd
from privfed.client.objectives.worker_momentum import WorkerMomentum
from privfed.core.errors import Refused
from privfed.core.vector import Shapes
from privfed.plan.plan import plan
from privfed.plan.rule import message_length
from privfed.privacy.mechanism import BoundedRows
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.report.page.run_facts import run_facts
from privfed.run.check import check
from privfed.run.prepare import prepare
from privfed.run.train import resume
from privfed.sampling.cohort import Cohort

CLIP = 0.05
PARTS = {
    "random_mask": RandomMask(fraction=0.2),
    "low_rank": LowRank(rank=1),
    "count_sketch": CountSketch(fraction=0.9, sketch_rows=1),
    "power_sgd": PowerSgd(rank=1),
}
SILOS = "data.setting=cross_silo"


def moved_by_a_client(folder, part, task, mechanism):
    """By how much the sum of what five clients send moves where the first sends nothing."""
    rounds = Rounds(folder, mechanism=mechanism, lr=20.0)
    shapes = rounds.local.network.shapes
    objective = compressed(Sgd(), part, 3, shapes.by_name)
    rounds.algorithm = replace(rounds.algorithm, objective=objective)
    for place in (rounds.local, rounds.world.executor.trainer):
        set_fields(place, objective=objective)
    broadcast = dict(first_broadcast(rounds.local))
    if task == "project":
        broadcast.pop("compression_left")
        basis = part.init(Space(shapes, 3))["basis"]
        broadcast["compression_basis"] = basis
    exchange = Exchange(task, broadcast, objective.layout(shapes.length))
    sums = [
        rounds.summed(exchange, Cohort(1, np.arange(first, 5), 4.0, rounds.algorithm.witness(1)))
        for first in (0, 1)
    ]
    assert sums[0].bound == CLIP
    return float((sums[0].total - sums[1].total).norm())


class Unscaled(CentralGaussian):
    """A broken one: rows are scaled up as the server decodes them, and after they were clipped."""

    def bound(self, rows, layout, keys, state):
        bounded = super().bound(rows, layout, keys, state)
        return BoundedRows(bounded.rows * 5.0, bounded.bound)


class ClippedBefore(CentralGaussian):
    """A broken one: rows are taken to be clipped already, as their updates were."""

    def bound(self, rows, layout, keys, state):
        return BoundedRows(rows, self.clip)


TASKS = [*((name, "train") for name in PARTS), ("power_sgd", "project")]


@every_case(("name", "task"), TASKS)
def test_a_client_moves_the_sum_by_the_clip_and_no_more(name, task, tmp_path):
    right = CentralGaussian(clip=CLIP, noise_multiplier=1.0)
    assert 0.9 * CLIP < moved_by_a_client(tmp_path, PARTS[name], task, right) <= CLIP


@pytest.mark.parametrize("broken", [Unscaled, ClippedBefore])
def test_a_scale_after_the_clip_and_a_clip_before_are_noticed(broken, tmp_path):
    wrong = broken(clip=CLIP, noise_multiplier=1.0)
    assert moved_by_a_client(tmp_path, PARTS["random_mask"], "train", wrong) > CLIP


@every_case("name", ["none", *PARTS, "qsgd", "sign"])
def test_a_round_is_one_event_of_as_many_exchanges_as_are_made(name, tmp_path):
    """Whatever a row is made of: nothing is charged for it, and nothing given back."""
    like = "client.objective=feddane" if name == "power_sgd" else "client.objective=sgd"
    trained(tmp_path / "run", f"compression.name={name}", "run.rounds=2")
    charges = Ledger.load(tmp_path / "run/ledger.jsonl").charges
    assert [charge.event for charge in charges] == [plan(small(like)).event] * 2


def test_the_exchanges_are_about_one_training(tmp_path):
    """What a round of PowerSGD makes of a cohort, from the plain updates of the same clients."""
    part = PowerSgd(rank=1)
    rounds = full_batches(tmp_path / "plain", Sgd())
    shapes = rounds.local.network.shapes
    params, cohort = rounds.state.params, Cohort(1, np.arange(4), 4.0, rounds.algorithm.witness(1))
    exchange = Exchange("train", {"params": params}, Sgd().layout(len(params)))
    updates = rows_of(rounds.world.executor, exchange, cohort)
    space = Space(shapes, 3)
    asking = part.exchanges_before(Sending(space, 1, {"params": params}), part.init(space))
    first = part.encode(updates, None, Sending(space, 1, next(asking).broadcast))[0].mean(0)
    with pytest.raises(StopIteration) as end:
        asking.send(first)
    exchanges_before = Sending(space, 1, end.value.value)
    update, _ = part.decode(
        part.encode(updates, None, exchanges_before)[0].mean(0), exchanges_before, {}
    )
    objective = compressed(Sgd(), part, 3, shapes.by_name)
    after = full_batches(tmp_path / "sent", objective).run()
    torch.testing.assert_close(after.params - params, update, rtol=1e-4, atol=1e-6)
    assert 0 < update.norm() < updates.mean(0).norm()


@pytest.mark.parametrize(
    ("part", "distance"),
    mostly_slow(
        [
            (TopK(fraction=0.25, error_feedback=False), (0.4, 2.0)),
            (TopK(fraction=0.25), (0.0, 0.2)),
            (Sign(), (0.2, 2.0)),
            (Sign(error_feedback=True), (0.0, 0.15)),
            (RandomMask(fraction=0.25), (0.0, 1e-3)),
            (RandomMask(fraction=0.25, error_feedback=True), (0.0, 1e-3)),
        ],
        (TopK(fraction=0.25, error_feedback=False), (0.4, 2.0)),
        (TopK(fraction=0.25), (0.0, 0.2)),
        (RandomMask(fraction=0.25), (0.0, 1e-3)),
        names=[
            *("top_k", "top_k-memory", "sign", "sign-memory", "random_mask", "random_mask-memory")
        ],
    ),
)
def test_memory_of_what_was_left_off_goes_where_biased_rows_do_not(part, distance, tmp_path):
    """Eight least-squares problems that disagree: how far from their common optimum it ends."""
    rounds, best = quadratics(tmp_path, compressed(Sgd(), part, 0), 8)
    set_fields(rounds.local, epochs=1)
    away = (rounds.run(300).params - best).norm() / best.norm()
    assert distance[0] <= away < distance[1]


def test_an_objectives_state_and_what_was_left_off_lie_beside_each_other(tmp_path):
    """Where nothing is left off, momentum goes its way, and the memory stays empty."""
    plain = full_batches(tmp_path / "plain", WorkerMomentum()).run(3)
    sent = compressed(WorkerMomentum(), TopK(fraction=1.0), 0)
    rounds = full_batches(tmp_path / "sent", sent)
    torch.testing.assert_close(rounds.run(3).params, plain.params)
    d = len(plain.params)
    states, returning = rounds.world.states.gather(np.arange(4), torch.zeros(2 * d))
    assert returning.all()
    assert states[:, :d].any()
    assert not states[:, d:].any()


class Remembering(Sgd):
    """An objective that does everything by its state `[c, d]`."""

    keeps = 1

    def origin(self, broadcast, state, measured):
        return state

    def carry(self, broadcast, state):
        return state

    def anchor(self, w, broadcast, state, carried):
        return state

    def direction(self, grad, w, broadcast, state):
        return state

    def personal(self, broadcast, state, measured):
        return state


def test_an_objective_is_given_its_state_without_what_was_left_off():
    objective = compressed(Remembering(), TopK(), 0)
    zeros, counts = torch.zeros(2, 3), torch.ones(2)
    both = torch.tensor([1.0, 1, 1, 2, 2, 2]).expand(2, -1)
    step = LocalStep(zeros, zeros, None, both, None, 0, counts, counts, 0.1)
    broadcast = {"params": torch.zeros(3)}
    given = (
        objective.origin(broadcast, both, None),
        objective.carry(broadcast, both),
        objective.anchor(zeros, broadcast, both, None),
        objective.along(step, broadcast)[0],
        objective.personal(broadcast, both, None),
    )
    for state in given:
        assert state.tolist() == [[1.0] * 3] * 2


def test_a_model_of_ones_own_and_what_stays_lie_before_what_was_left_off(tmp_path):
    """Ditto's personal model, and a head that stays, go as they do where nothing is left off."""
    kinds = {"ditto": "client.objective=ditto", "head": 'model.local=["1.bias"]'}
    for name, key in kinds.items():
        words = (key, SILOS, "run.randomness=seeded", "run.rounds=2")
        trained(tmp_path / name, *words)
        trained(tmp_path / f"sent-{name}", *words, "compression.name=top_k",
                "compression.fraction=1.0")  # fmt: skip
        plain, sent = (model(tmp_path / folder) for folder in (name, f"sent-{name}"))
        for tensor in (each for each in plain if each.startswith("model/")):
            torch.testing.assert_close(sent[tensor], plain[tensor])


RESUMED = {
    "count_sketch": ("compression.momentum=0.5",),
    "random_mask": ("compression.error_feedback=true", SILOS),
    "power_sgd": ("compression.error_feedback=true", SILOS, "cohort.dropout=0.3"),
    "qsgd": (),
}


@every_case("name", RESUMED)
def test_a_run_that_goes_on_repeats_its_coins_and_remembers(name, tmp_path):
    settings = [f"compression.name={name}", "run.randomness=seeded", *RESUMED[name]]
    trained(tmp_path / "all", *settings)
    trained(tmp_path / "part", *settings, "run.rounds=4")
    resume(tmp_path / "part", lambda stored: stored.with_run(rounds=7))
    same_run(tmp_path / "all", tmp_path / "part")


def test_secure_sums_carry_what_is_sent_and_noise_is_for_its_length(tmp_path):
    words = ("compression.name=low_rank", "compression.rank=1", "secure.protocol=masks")
    config = small(*words, "secure.simulate=arithmetic", "privacy.mechanism=skellam")
    setup = prepare(config)
    shapes = setup.network.shapes
    sent = message_length(config, shapes.length, shapes.by_name)
    assert sent < shapes.length
    assert setup.algorithm.objective.layout(shapes.length).length == sent
    charged = setup.plan.event
    assert charged == plan(config, length=sent).event != plan(config, length=shapes.length).event
    trained(tmp_path / "run", *words, "secure.simulate=arithmetic", "privacy.mechanism=skellam")


@every_case(
    ("words", "up"),
    [
        (("compression.name=random_mask", "compression.fraction=0.5"), 4 * 10),
        (("compression.name=sign",), (21 + 32) / 8),
        (("compression.name=power_sgd",), 2 * 4 * 21),
        (("compression.name=random_mask", "compression.fraction=0.5", "privacy.mechanism=none"),
         4 * 11),
        (("compression.name=sign", "privacy.mechanism=none"), (21 + 32) / 8 + 4),
    ],
    ids=["mask", "sign", "power_sgd of a small model", "mask with a weight", "sign with a weight"],
)  # fmt: skip
def test_bytes_are_those_that_are_sent(words, up):
    drop = ["privacy.noise_multiplier=2.0"] if "privacy.mechanism=none" in words else []
    config = small(*words) if not drop else small(*words, "privacy.epsilon=inf")
    assert check(config).forecast.up / 4 == pytest.approx(up)


def test_bases_of_both_sides_of_a_layer_are_sent_beside_the_model():
    """Of a layer `[64, 6]`, at rank 2, to each of four clients; the next is too small for it."""
    names = ("none", "power_sgd")
    down = {
        name: check(small("model.name=mlp", f"compression.name={name}")).forecast.down
        for name in names
    }
    assert down["power_sgd"] - down["none"] == pytest.approx(4 * 4 * 2 * (64 + 6))


@pytest.mark.parametrize(
    ("name", "row"),
    [
        (
            "random_mask",
            "random_mask: 2 of 21 numbers; the compressed row is clipped; its norm is about 0.31",
        ),
        (
            "sign",
            "sign: each row is encoded by itself; the compressed row is clipped; its norm is about",
        ),
    ],
    ids=["mask", "sign"],
)
def test_a_plan_says_what_is_sent_and_what_the_clip_is_for(name, row):
    words = [f"--set={key}" for key in (*SMALL, f"compression.name={name}")]
    assert row in " ".join(run("check", *words).output.split())


REFUSED = {
    "an objective that sums states": (
        ("compression.name=random_mask", "client.objective=scaffold", SILOS),
        "is for messages that are one update",
    ),
    "an objective of two exchanges": (
        ("compression.name=low_rank", "client.objective=mime"),
        "is for messages that are one update",
    ),
    "rows by themselves in secure sums": (
        ("compression.name=qsgd", "secure.protocol=masks"),
        "no byte",
    ),
    "rows by themselves in sums of sites": (
        ("compression.name=qsgd", "data.sites=3", "data.site_partition=elsewhere"),
        "send sums of their clients' rows",
    ),
    "rows by themselves under noise of clients": (
        ("compression.name=sign", "privacy.mechanism=local_gaussian"),
        "a client adds noise to all entries",
    ),
    "a rule with a center": (
        ("compression.name=random_mask", "aggregation.rule=centered_clipping"),
        "depends on earlier updates or on the layers of a model, but under",
    ),
    "noise that cancels over rounds": (
        ("compression.name=random_mask", "privacy.mechanism=blt", "cohort.sampler=cyclic",
         "cohort.separation=3", "cohort.size=0"),
        "entries differ in each",
    ),
    "a robust rule by two sums": (
        ("compression.name=power_sgd", "aggregation.rule=norm_bound"),
        "combines two sums of one cohort",
    ),
    "noise that clients share of rows": (
        ("compression.name=power_sgd", "privacy.mechanism=pairwise_gaussian", SILOS,
         "cohort.sampler=full", "cohort.size=0"),
        '^compression.name = \'power_sgd\' combines two .* receives rows; use [^\\n]*$',
    ),
    "attackers of two messages": (
        ("compression.name=power_sgd", "attack.name=sign_flip", "attack.fraction=0.2"),
        "simulated only for one",
    ),
    "noise of steps drawn twice": (
        ("compression.name=power_sgd", SILOS, "cohort.sampler=full", "cohort.size=0",
         "client.privacy.mechanism=dp_sgd", "client.privacy.sampling_rate=1.0",
         "client.privacy.noise_multiplier=3.0"),
        "would sample its noise again",
    ),
    "memory of clients that do not return": (
        ("compression.name=top_k",),
        "compression.error_feedback = true has each client store d numbers",
    ),
    "memory under a draw without proof": (
        ("compression.name=top_k", SILOS, "cohort.sampler=fixed_size"),
        "no privacy amplification is proved",
    ),
    "canaries": (
        ("compression.name=random_mask", "data.clients=24", "audit.canaries=20"),
        "scored by releases of whole updates",
    ),
}  # fmt: skip


@every_case("case", REFUSED)
def test_what_has_no_proof_or_no_use_is_refused_by_name(case):
    words, reason = REFUSED[case]
    with pytest.raises(Refused, match=reason):
        plan(small(*words))


@pytest.mark.parametrize("name", ["count_sketch", "sign"])
def test_noise_that_cancels_over_rounds_goes_where_places_stay_what_they_are(name):
    words = ("privacy.mechanism=blt", "cohort.sampler=cyclic", "cohort.separation=3")
    sized = (*words, "cohort.size=0")
    assert plan(small(*sized, f"compression.name={name}")).event == plan(small(*sized)).event


def test_what_clients_measure_is_sent_at_once():
    words = ("evaluation.by=clients", "evaluation.every=7", "compression.name=power_sgd")
    assert plan(small(*words), measures=2).evaluation.cost.exchanges == 1


def test_a_report_says_the_bytes_that_the_run_was_forecast(tmp_path):
    words = ("model.name=mlp", "compression.name=power_sgd", "run.rounds=1")
    trained(tmp_path, *words)
    expected, exchange = check(small(*words)).forecast, run_facts(tmp_path).exchange
    assert (exchange.up, exchange.down) == (expected.up, expected.down)


class Anchored(Sgd):
    """An objective whose state is the gradient of all of a client's examples."""

    anchored = "all"


def test_a_memory_takes_the_place_of_no_gradient():
    words = (f"client.objective={__name__}:Anchored", SILOS)
    with pytest.raises(Refused, match="stores a gradient in a client's state"):
        plan(small(*words, "compression.name=top_k"))
    plan(small(*words, "compression.name=top_k", "compression.error_feedback=false"))


def test_a_model_without_layers_known_is_one_vector():
    objective = compressed(Sgd(), LowRank(), 0)
    assert objective.layout(50).length == 50
    known = compressed(Sgd(), LowRank(rank=1), 0, Shapes(("w",), ((5, 10),)).by_name)
    assert known.layout(50).length == 5
