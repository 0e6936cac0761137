"""SCAFFOLD, FedDyn and FedCurv: objectives whose clients remember, against their papers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from contracts.runs import choosing
from helpers import FEATURES, Rounds, built, population, rows_of, set_fields, trainer
from lanes import mostly_slow
from papers import full_batches, gradients, quadratics
from small import same_run, small, trained
from torch import nn

from privfed.client.client_states import ClientStates
from privfed.client.objective import Cohorts, Sgd, Work
from privfed.client.objectives.fedcurv import FedCurv
from privfed.client.objectives.feddyn import FedDyn
from privfed.client.objectives.mime import Mime
from privfed.client.objectives.scaffold import Scaffold
from privfed.core.registry import BUILT_IN
from privfed.core.streams import Streams
from privfed.models.recipes import Foreign
from privfed.privacy.mechanisms.none import NoPrivacy
from privfed.round.round import play, run_round
from privfed.run.check import check
from privfed.run.train import resume
from privfed.sampling.cohort import Cohort
from privfed.sampling.samplers import Poisson


class Turns(Poisson):
    """Round t asks the t-th block of `size` clients: each is seen once before any is again."""

    def sample(self, round, clients, sizes, streams):
        first = (round - 1) * self.size % len(sizes)
        return replace(super().sample(round, clients, sizes, streams),
                       clients=np.arange(first, first + self.size))  # fmt: skip


@pytest.mark.parametrize("way", ["stacked", "loop"])
def test_scaffold_is_its_papers_algorithm(tmp_path, way):
    """Option II with all clients from round 1, where c starts at 0, written out in plain loops."""
    rounds = full_batches(tmp_path, Scaffold(control_scale=0.3), way=way)
    gradient, lr = gradients(rounds), 0.5
    x = rounds.state.params.clone()
    c, own = torch.zeros_like(x), [torch.zeros_like(x) for _ in range(4)]
    for _ in range(3):
        ends, changes = [], []
        for client in range(4):
            w = x.clone()
            for _ in range(2):
                w = w - lr * (gradient(client, w) - own[client] + c)
            after = own[client] - c + (x - w) / (2 * lr)
            changes.append(after - own[client])
            own[client] = after
            ends.append(w)
        x, c = torch.stack(ends).mean(0), c + torch.stack(changes).mean(0)
    after = rounds.run(3)
    torch.testing.assert_close(after.params, x, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(after.objective["control"], c, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("way", ["stacked", "loop"])
def test_feddyn_is_its_papers_algorithm(tmp_path, way):
    alpha = 0.4
    rounds = full_batches(tmp_path, FedDyn(alpha=alpha), way=way)
    gradient, lr = gradients(rounds), 0.5
    x = rounds.state.params.clone()
    h, own = torch.zeros_like(x), [torch.zeros_like(x) for _ in range(4)]
    for _ in range(3):
        ends = []
        for client in range(4):
            w = x.clone()
            for _ in range(2):
                w = w - lr * (gradient(client, w) - own[client] + alpha * (w - x))
            own[client] = own[client] - alpha * (w - x)
            ends.append(w)
        mean = torch.stack(ends).mean(0)
        h = h - alpha * (mean - x)
        x = mean - h / alpha
    torch.testing.assert_close(rounds.run(3).params, x, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("way", ["stacked", "loop"])
def test_fedcurv_is_its_papers_algorithm(tmp_path, way):
    strength = 0.2
    rounds = full_batches(tmp_path, FedCurv(strength=strength), way=way)
    gradient, lr = gradients(rounds), 0.5
    federation, net = rounds.local.federation, rounds.local.network

    def fisher(client, w):
        squares = []
        for row in range(*federation.offsets[client : client + 2]):
            leaf = w.detach().requires_grad_()
            x, y = federation.examples.x[row : row + 1], federation.examples.y[row : row + 1]
            net.losses(leaf, x, y).mean().backward()
            squares.append(leaf.grad.square())
        return torch.stack(squares).mean(0)

    x = rounds.state.params.clone()
    last = [(torch.zeros_like(x), torch.zeros_like(x)) for _ in range(4)]
    for _ in range(3):
        now = []
        for client in range(4):
            w = x.clone()
            for _ in range(2):
                pull = sum(
                    2 * strength * information * (w - model)
                    for other, (information, model) in enumerate(last)
                    if other != client
                )
                w = w - lr * (gradient(client, w) + pull)
            now.append((fisher(client, w), w))
        last = now
        x = torch.stack([w for _, w in now]).mean(0)
    after = rounds.run(3)
    torch.testing.assert_close(after.params, x, rtol=1e-3, atol=1e-5)
    total = sum(information for information, _ in last)
    torch.testing.assert_close(after.objective["fisher"], total, rtol=1e-3, atol=1e-5)


def test_scaffold_is_fedavg_where_each_client_is_seen_once_and_not_beyond(tmp_path):
    changes = {"sampler": Turns(size=2), "mechanism": NoPrivacy()}
    runs = {}
    for name, objective in (("scaffold", Scaffold()), ("sgd", Sgd())):
        for count in (4, 5):
            rounds = Rounds(tmp_path / f"{name}{count}", objective=objective, **changes)
            set_fields(rounds.world.executor, by_examples=False)
            runs[name, count] = rounds.run(count).params
    torch.testing.assert_close(runs["scaffold", 4], runs["sgd", 4], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(runs["scaffold", 5], runs["sgd", 5], atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("size, count", [(8, 60), (4, 100)])
def test_where_fedavg_stops_short_of_heterogeneous_optima_they_arrive(tmp_path, size, count):
    """And the paper's control variate stops short where clients join later, which is why ours
    differs; where all join in round 1, they are the same.
    """
    objectives = {"sgd": Sgd(), "ours": Scaffold(), "papers": Scaffold(published=True)}
    objectives["feddyn"] = FedDyn(alpha=1.0)
    ends, distances = {}, {}
    for name, objective in objectives.items():
        rounds, best = quadratics(tmp_path / name, objective, size)
        ends[name] = rounds.run(count).params
        distances[name] = float((ends[name] - best).norm() / best.norm())
    assert distances["sgd"] > 0.02
    assert distances["ours"] < 1e-3
    assert distances["feddyn"] < 1e-3
    if size == 4:
        assert distances["papers"] > 0.05
    else:
        torch.testing.assert_close(ends["ours"], ends["papers"], rtol=1e-4, atol=1e-5)


def test_a_step_that_was_not_taken_changes_no_control_variate():
    objective, d = Scaffold(), 3
    broadcast = {"params": torch.zeros(d), "control": torch.ones(d)}
    own = torch.full((2, d), 2.0)
    seen = torch.tensor([True, False])
    work = Work(torch.zeros(2), 0.5, returning=seen)
    rows, after = objective.message(torch.zeros(2, d), broadcast, own, work)
    assert rows[0].tolist() == [0.0] * 6
    assert torch.equal(after[0], own[0])
    assert rows[1].tolist() == [0.0] * 6
    assert after[1].tolist() == [0.0] * 3, "a newcomer without a step holds nothing"


def test_a_newcomer_starts_at_the_servers_control_variate_and_feddyns_at_zero():
    broadcast = {"params": torch.zeros(2), "control": torch.tensor([1.0, 2.0])}
    assert Scaffold().unseen(broadcast).tolist() == [1.0, 2.0]
    assert FedDyn().unseen(broadcast).tolist() == [0.0, 0.0]
    assert FedCurv().unseen(broadcast).tolist() == [0.0] * 4


def test_the_control_variate_is_the_mean_of_those_expected_to_have_joined():
    objective, cohorts = Scaffold(control_scale=1.0), Cohorts(10, 2.0)
    broadcast, memory = {"params": torch.zeros(1)}, objective.init(torch.zeros(1))
    for joined in (2.0, 3.6):
        update, memory = objective.conclude(broadcast, torch.tensor([0.5, 3.0]), memory, cohorts)
        assert update.tolist() == [0.5]
        assert float(memory["control"]) == pytest.approx(float(memory["sum"]) / joined)


@pytest.mark.parametrize("empty, size", mostly_slow([(4, 6), (8, 8)], (4, 6)))
def test_scaffold_arrives_with_clients_that_hold_nothing_too(tmp_path, empty, size):
    rounds, best = quadratics(tmp_path, Scaffold(), size, empty=empty)
    assert float((rounds.run(150).params - best).norm() / best.norm()) < 2e-3


def test_feddyns_drift_is_the_sum_over_all_clients():
    cohorts, broadcast = Cohorts(10, 4.0), {"params": torch.zeros(2)}
    objective = FedDyn()
    released = torch.tensor([1.0, -2.0])
    update, memory = objective.conclude(broadcast, released, objective.init(released), cohorts)
    assert memory["drift"].tolist() == pytest.approx([0.4, -0.8])
    assert update.tolist() == pytest.approx([1.4, -2.8])


def test_fedcurvs_sums_are_over_the_clients_that_answered():
    cohorts, broadcast = Cohorts(10, 4.0), {"params": torch.zeros(1)}
    objective = FedCurv()
    released = torch.tensor([1.0, 3.0, 5.0])
    _, memory = objective.conclude(broadcast, released, objective.init(torch.zeros(1)), cohorts)
    assert (float(memory["fisher"]), float(memory["weighted"])) == (12.0, 20.0)


@pytest.mark.parametrize("objective", [Sgd(), Scaffold()])
def test_stragglers_are_trained_for_their_fewer_epochs(tmp_path, objective):
    """What the executor sends is what a client of that many epochs sends."""
    rounds = Rounds(tmp_path, (9,) * 12, size=12, objective=objective, noise=0.0)
    executor, ids = rounds.world.executor, np.arange(12)
    set_fields(executor, stragglers=0.6)
    set_fields(executor.trainer, epochs=4)
    if rounds.world.states:
        rounds.world.states.begin(1)
    exchange = next(play(rounds.algorithm, 1, rounds.state))
    cohort = Cohort(1, ids, 12.0, rounds.algorithm.sampler.witness(1, 12))
    rows = rows_of(executor, exchange, cohort)
    epochs = executor._epochs(ids, 1)
    assert 1 <= epochs.min() < epochs.max() == 4
    keys = executor.streams.at("shuffle", 1, ids)
    unseen = objective.unseen(exchange.broadcast)
    own = unseen.expand(12, -1) if objective.keeps else None
    nobody = torch.zeros(12, dtype=torch.bool)
    wanted, _ = rounds.local.train(ids, exchange.broadcast, own, keys, epochs, nobody)
    torch.testing.assert_close(rows, wanted)
    everything, _ = rounds.local.train(ids, exchange.broadcast, own, keys, returning=nobody)
    assert not torch.allclose(rows, everything, atol=1e-4)


def test_a_straggler_never_does_all_epochs(tmp_path):
    rounds = Rounds(tmp_path, (4,) * 500, size=100)
    set_fields(rounds.world.executor, stragglers=1.0)
    set_fields(rounds.world.executor.trainer, epochs=3)
    epochs = rounds.world.executor._epochs(np.arange(500), 1)
    assert set(epochs.tolist()) == {1, 2}


class Dropping(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features[0], 8), nn.Dropout(0.5), nn.Linear(8, width))

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("name", mostly_slow(BUILT_IN["objective"], "sgd", "scaffold", "ditto"))
def test_a_clients_dropout_is_its_own_under_every_objective(tmp_path, name):
    """Seeded runs repeat and resume bit for bit, whatever else drew, and chunks do not matter."""
    settings = [
        *choosing(name), "data.setting=cross_silo", "run.randomness=seeded",
        f"model.name={__name__}:Dropping", "run.trainer=loop", "client.lr=0.1",
    ]  # fmt: skip
    trained(tmp_path / "whole", *settings)
    torch.rand(7)
    trained(tmp_path / "part", *settings, "run.rounds=4")
    resume(tmp_path / "part", lambda stored: stored.with_run(rounds=7))
    same_run(tmp_path / "whole", tmp_path / "part")


def test_mimes_two_gradients_of_a_batch_share_their_dropout():
    """At the broadcast model they are one and the same: a first step follows the momentum alone."""
    net = built(Foreign.of(Dropping)(), (FEATURES,), 3)
    local = trainer(population((6,)), network=net, way="loop", epochs=1, batch_size=6, lr=1.0)
    set_fields(local, objective=Mime(beta=0.0))
    params, ids = local.network.initial_params, np.arange(1)
    gradient = torch.full_like(params, 0.25)
    broadcast = {"params": params, "gradient": gradient, "momentum": torch.zeros_like(params)}
    rows, _ = local.train(ids, broadcast, None, Streams(1).at("shuffle", 1, ids))
    torch.testing.assert_close(rows[0], -gradient)


def test_nobodys_state_depends_on_who_else_is_there(tmp_path):
    """Given what was broadcast: the ground on which a state of one's own costs no privacy."""
    federation = population((3, 9, 4, 6))
    local = trainer(federation)
    set_fields(local, objective=Scaffold())
    params = local.network.initial_params
    broadcast = {"params": params, "control": torch.ones_like(params)}
    own = torch.randn(4, len(params), generator=torch.Generator().manual_seed(0))

    def after(ids):
        keys = Streams(1).at("shuffle", 1, ids)
        rows, states = local.train(ids, broadcast, own[ids], keys)
        return dict(zip(ids.tolist(), zip(rows, states, strict=True), strict=True))

    everybody = after(np.arange(4))
    for client in range(4):
        for other, (row, state) in after(np.delete(np.arange(4), client)).items():
            torch.testing.assert_close(row, everybody[other][0])
            torch.testing.assert_close(state, everybody[other][1])


@pytest.mark.parametrize("way", ["stacked", "loop"])
def test_the_fisher_is_the_mean_of_squares_however_it_is_batched(way):
    federation = population((3, 9, 0, 4))
    fishers = []
    for batch_size in (2, 100):
        local = trainer(federation, way=way, batch_size=batch_size, epochs=1, lr=0.0)
        set_fields(local, objective=FedCurv())
        ids = np.arange(4)
        zeros = torch.zeros(2 * len(local.network.initial_params))
        params = local.network.initial_params + 0.2
        broadcast = {"params": params, "fisher": params * 0, "weighted": params * 0}
        keys = Streams(1).at("shuffle", 1, ids)
        rows, _ = local.train(ids, broadcast, zeros.expand(4, -1), keys)
        fishers.append(rows[:, len(params) : 2 * len(params)])
    torch.testing.assert_close(*fishers, rtol=1e-4, atol=1e-6)
    assert (fishers[0][2] == 0).all()
    x, y = federation.examples.x[:3], federation.examples.y[:3]
    squares = []
    for row in range(3):
        leaf = params.clone().requires_grad_()
        local.network.losses(leaf, x[row : row + 1], y[row : row + 1]).sum().backward()
        squares.append(leaf.grad.square())
    torch.testing.assert_close(fishers[0][0], torch.stack(squares).mean(0), rtol=1e-4, atol=1e-6)


def test_states_survive_what_a_round_needs(tmp_path):
    folder = tmp_path / "private"
    unseen = torch.tensor([7.0, 8.0])
    states = ClientStates(folder, "a", 5, 2, 0)
    ids = np.array([3, 1])
    states.begin(1)
    states.scatter(ids, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert states.gather(ids, unseen)[1].tolist() == [False, False], "not before the round is kept"
    states.keep()
    values, seen = states.gather(np.array([1, 2, 3]), unseen)
    assert values.tolist() == [[3.0, 4.0], [7.0, 8.0], [1.0, 2.0]]
    assert seen.tolist() == [True, False, True]
    states.begin(2)
    states.scatter(np.array([3]), torch.tensor([[9.0, 9.0]]))
    states.keep()
    states.discard()  # a later exchange of round 2 was aborted
    assert states.gather(np.array([3]), unseen)[0].tolist() == [[1.0, 2.0]]
    states.begin(3)
    states.keep()
    assert states.gather(np.array([3]), unseen)[0].tolist() == [[1.0, 2.0]]
    states.begin(4)
    states.scatter(np.array([3]), torch.tensor([[5.0, 6.0]]))
    states.keep()

    again = ClientStates(folder, "a", 5, 2, 0)  # killed, without a checkpoint
    assert not again.gather(ids, unseen)[1].any()
    again.replay(1, released=True)
    again.replay(2, released=False)
    assert again.gather(ids, unseen)[0].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    again.replay(3, released=True)
    again.replay(4, released=True)
    again.settle(4)
    assert again.gather(ids, unseen)[0].tolist() == [[5.0, 6.0], [3.0, 4.0]]
    assert ClientStates(folder, "a", 5, 2, 4).gather(ids, unseen)[0].tolist() == [
        [5.0, 6.0],
        [3.0, 4.0],
    ]


def test_a_client_that_diverged_keeps_what_it_had(tmp_path):
    rounds = Rounds(tmp_path, (3, 9, 4, 6), objective=FedDyn(alpha=1.0), size=4)
    d = rounds.local.network.shapes.length
    rounds.run(1)
    before, seen = rounds.world.states.gather(np.arange(4), torch.zeros(d))
    assert seen.all()
    set_fields(rounds.local, lr=1e38)
    set_fields(rounds.world.executor, trainer=rounds.local)
    run_round(2, rounds.algorithm, rounds.state, rounds.world)
    after, _ = rounds.world.states.gather(np.arange(4), torch.zeros(d))
    assert torch.equal(after, before)


def test_their_traffic_and_what_clients_keep_are_said():
    free = check(small()).forecast
    for name, up, down, keeps in (
        ("scaffold", 2, 2, 1),
        ("feddyn", 1, 1, 1),
        ("worker_momentum", 1, 1, 1),
    ):
        forecast = check(small(f"client.objective={name}", "data.setting=cross_silo")).forecast
        assert (forecast.up, forecast.down) == (up * free.up, down * free.down)
        assert forecast.remembered == keeps * free.parameters * 4
    settings = ("client.objective=fedcurv", "data.setting=cross_silo", "privacy.mechanism=none")
    assert check(small(*settings)).forecast.remembered == 2 * free.parameters * 4
    assert free.remembered == 0
