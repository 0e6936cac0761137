"""q-FedAvg, AFL and clips by group: as their papers define them, at rest where they say."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import D, Rounds, population
from lanes import every_case
from papers import full_batches, gradients

from privfed.client.exchange import Exchange
from privfed.client.objective import Cohorts, Sgd, Work
from privfed.client.objectives.afl import Afl, on_simplex
from privfed.client.objectives.group_clip import GroupClip
from privfed.client.objectives.qfedavg import QFedAvg
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.federation import Federation
from privfed.metrics.groups import ClientGroups
from privfed.models.form import Form
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.round.round import replay
from privfed.server.fedopt import FedAvg

GROUPS = torch.tensor([0] * 9 + [1])
PLACES, CURVES = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 4.0])
"""Nine clients with the loss w^2 / 2, one with 2 (w - 1)^2."""
COHORTS = Cohorts(10, 10.0)


def resting_place(objective, rounds, lr=0.05, start=0.3):
    """The model after so many rounds of one gradient step by all, and the memory."""
    place, curve = PLACES[GROUPS, None], CURVES[GROUPS, None]
    params = torch.tensor([start])
    memory = objective.init(params)
    for _ in range(rounds):
        losses = curve / 2 * (params - place) ** 2
        extra = yielded(objective.prelude(params, memory))
        w = params - lr * curve * (params - place)
        work = Work(torch.ones(10), lr, losses, groups=GROUPS)
        broadcast = {"params": params, **extra}
        rows = objective.admitted(objective.message(w, broadcast, None, work)[0])
        delta, memory = objective.conclude(broadcast, rows.mean(0), memory, COHORTS)
        params = params + delta
    return float(params), memory


def yielded(prelude):
    with pytest.raises(StopIteration) as finished:
        next(prelude)
    return finished.value.value


def at_rest(q):
    """Where sum_k F_k^q grad F_k is zero: 9 w (w^2 / 2)^q = 4 (1 - w) (2 (1 - w)^2)^q."""
    ratio = (4 / 9 * 4**q) ** (1 / (2 * q + 1))
    return ratio / (1 + ratio)


@every_case("q", [0.0, 1.0, 4.0])
def test_qfedavg_rests_where_its_objective_is_least(q):
    assert resting_place(QFedAvg(q=q), 300)[0] == pytest.approx(at_rest(q), abs=1e-3)
    assert abs(at_rest(q) - 2 / 3) < abs(at_rest(0.0) - 2 / 3) or q == 0.0


def test_it_goes_from_the_mean_to_the_minimax_model():
    assert at_rest(0.0) == pytest.approx(4 / 13)
    assert at_rest(100.0) == pytest.approx(2 / 3, abs=0.01)


class Unweighted(QFedAvg):
    """The divisor follows losses, and updates do not."""

    def message(self, w, broadcast, state, work):
        rows, _ = super().message(w, broadcast, state, work)
        return torch.cat([w - broadcast["params"], rows[:, 1:]], dim=1), state


def test_a_qfedavg_that_weighs_no_update_rests_elsewhere():
    assert abs(resting_place(Unweighted(q=1.0), 300)[0] - at_rest(1.0)) > 0.1


def test_qfedavg_is_its_papers_step(tmp_path):
    """Algorithm 2 by hand: Delta w = L (w - w_k), Delta = F^q Delta w, L = 1 / lr."""
    rounds = full_batches(tmp_path, QFedAvg(q=2.0), server=FedAvg())
    federation, net, gradient = rounds.local.federation, rounds.local.network, gradients(rounds)
    x, lr = rounds.state.params.clone(), 0.5
    top, bottom = torch.zeros_like(x), 0.0
    for client in range(4):
        start, end = federation.offsets[client : client + 2]
        loss = net.losses(
            x, federation.examples.x[start:end], federation.examples.y[start:end]
        ).mean()
        w = x.clone()
        for _ in range(2):
            w = w - lr * gradient(client, w)
        step = (x - w) / lr
        top += loss**2 * step
        bottom += 2 * loss * float(step @ step) + loss**2 / lr
    torch.testing.assert_close(rounds.run(1).params, x - top / bottom, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("fair", [QFedAvg(q=0.0), Afl(groups=3, ascent=1e-9)], ids=["q=0", "afl"])
def test_without_a_preference_they_are_fedavg(fair, tmp_path):
    """At q = 0; and AFL in its first round, where the mixture is even and no part is known."""
    plain = full_batches(tmp_path / "a", Sgd(), server=FedAvg()).run(1).params
    torch.testing.assert_close(
        full_batches(tmp_path / "b", fair, server=FedAvg()).run(1).params, plain
    )


def test_afl_rests_at_the_minimax_model_with_its_mixture():
    """Both losses are 2/9 at w = 2/3, and the gradients cancel in the mixture 2/3, 1/3."""
    params, memory = resting_place(Afl(groups=2, ascent=0.5, loss_cap=2.0), 400)
    assert params == pytest.approx(2 / 3, abs=0.01)
    assert memory["mixture"].tolist() == pytest.approx([2 / 3, 1 / 3], abs=0.02)
    assert memory["counts"].tolist() == pytest.approx([360.0, 40.0], rel=1e-3)


class ByClients(Afl):
    """Groups count by how many clients they have: what is small stays small."""

    def _parts(self, memory):
        return torch.full_like(memory["counts"], 1 / self.groups)


class Descending(Afl):
    """The mixture goes to groups that are served well."""

    def conclude(self, broadcast, released, memory, cohorts):
        delta, now = super().conclude(broadcast, released, memory, cohorts)
        moved = now["mixture"] - memory["mixture"]
        return delta, {**now, "mixture": on_simplex(memory["mixture"] - moved)}


@pytest.mark.parametrize("broken", [ByClients, Descending])
def test_a_broken_afl_rests_elsewhere(broken):
    assert abs(resting_place(broken(groups=2, ascent=0.5, loss_cap=2.0), 400)[0] - 2 / 3) > 0.05


def test_the_projection_is_the_nearest_mixture():
    generator = torch.Generator().manual_seed(0)
    for point in torch.randn(20, 4, generator=generator) * 2:
        nearest = on_simplex(point)
        assert float(nearest.min()) >= 0.0
        assert float(nearest.sum()) == pytest.approx(1.0, abs=1e-6)
        corners = torch.eye(4)  # the nearest is at an obtuse angle with every mixture
        assert float(((corners - nearest) @ (point - nearest)).max()) < 1e-5


HOSTILE = torch.tensor([[9.0, 9.0], [-5.0, 0.05], [0.3, -2.0], [0.04, 0.1]])


def test_what_no_honest_client_could_send_is_cut_off():
    delta = torch.ones(4, 3)
    rows = QFedAvg(q=1.0, loss_floor=1.0).admitted(torch.cat([delta, HOSTILE[:, 1:]], dim=1))
    assert rows[:, 3].tolist() == pytest.approx([9.0, 0.05, 0.01, 0.1], rel=1e-4)
    afl = Afl(groups=2).admitted(torch.cat([delta, HOSTILE, HOSTILE.flip(1)], dim=1))
    losses, counts = afl[:, 3:5], afl[:, 5:]
    assert bool((counts.sum(1) <= 0.1 + 1e-6).all())
    assert bool((losses >= 0).all() and (losses <= counts + 1e-6).all())
    assert torch.equal(afl[:, :3], delta)


@every_case("noised", [-1.0, 0.0, 1e-9])
def test_noise_on_a_divisor_makes_no_step_longer_than_declared(noised):
    """A loss_floor of a tenth of the cap, and a least_part of 1 / 50."""
    ratio, _ = QFedAvg(loss_floor=1.0).conclude({}, torch.tensor([1.0, noised]), {}, COHORTS)
    assert ratio.tolist() == pytest.approx([10.0])
    afl, released = Afl(groups=2), torch.tensor([1.0, 0.0, 0.0, noised, noised])
    broadcast = {"params": torch.zeros(1), "weights": torch.ones(2)}
    ratio, _ = afl.conclude(broadcast, released, afl.init(torch.zeros(1)), COHORTS)
    assert ratio.tolist() == pytest.approx([50.0])


def test_noise_on_losses_moves_no_mixture_further_than_the_cap():
    afl = Afl(groups=2, ascent=0.01, loss_cap=2.0)
    broadcast = {"params": torch.zeros(1), "weights": torch.ones(2)}
    released = torch.tensor([0.0, 99.0, -99.0, 0.05, 0.05])
    _, memory = afl.conclude(broadcast, released, afl.init(torch.zeros(1)), COHORTS)
    assert memory["mixture"].tolist() == pytest.approx([0.51, 0.49])


@pytest.mark.parametrize("objective", [QFedAvg(q=2.0), Afl(groups=2)], ids=["qfedavg", "afl"])
def test_a_loss_counts_for_no_more_than_its_cap(objective):
    params = torch.zeros(1)
    broadcast = {"params": params, **yielded(objective.prelude(params, objective.init(params)))}
    work = Work(torch.ones(2), 0.5, torch.tensor([[10.0], [1e9]]), groups=torch.tensor([1, 1]))
    at_cap, beyond = objective.message(torch.ones(2, 1), broadcast, None, work)[0]
    assert torch.equal(beyond, at_cap)


@pytest.mark.parametrize(
    "keys, why",
    [
        ({"loss_floor": 2.0, "loss_cap": 1.0}, "loss_floor is 2"),
        ({"q": 10.0}, "which is too small for float32"),
    ],
    ids=["floor above cap", "weights that vanish"],
)
def test_bounds_of_losses_that_leave_no_weights_are_refused(keys, why):
    with pytest.raises(ValueError, match=why):
        QFedAvg(**keys)


@pytest.mark.parametrize("objective", [QFedAvg(q=3.0), Afl(groups=3)], ids=["qfedavg", "afl"])
def test_honest_rows_are_admitted_as_they_are(objective, tmp_path):
    rounds = full_batches(tmp_path, objective)
    broadcast = {"params": rounds.state.params}
    broadcast |= yielded(objective.prelude(rounds.state.params, rounds.state.objective))
    ids = np.arange(4)
    keys = Streams(1).at("shuffle", 1, ids)
    rows, _ = rounds.local.train(ids, broadcast, None, keys)
    assert torch.equal(objective.admitted(rows), rows)


class Whispering(Afl):
    """The mixture follows losses that nobody released."""

    _heard: list = []

    def message(self, w, broadcast, state, work):
        self._heard.append(float(work.measured.sum()))
        return super().message(w, broadcast, state, work)

    def conclude(self, broadcast, released, memory, cohorts):
        delta, now = super().conclude(broadcast, released, memory, cohorts)
        heard = sum(self._heard)
        self._heard.clear()
        return delta, {**now, "mixture": on_simplex(now["mixture"] + heard * torch.arange(3.0))}


@pytest.mark.parametrize(
    "objective, follows",
    [(QFedAvg(), True), (Afl(groups=3), True), (Whispering(groups=3), False)],
    ids=["qfedavg", "afl", "a mixture of raw losses"],
)
def test_all_that_the_server_remembers_follows_from_releases(objective, follows, tmp_path):
    """Played again from what was released alone, a round ends in the same state, or leaks."""
    rounds = Rounds(tmp_path, objective=objective)
    trained = rounds.run(2)
    state = rounds.state
    for round in (1, 2):
        state = replay(rounds.algorithm, round, state, rounds.store.releases[round])
    same = all(torch.equal(state.objective[name], trained.objective[name]) for name in
               trained.objective) and torch.equal(state.params, trained.params)  # fmt: skip
    assert same == follows


@pytest.mark.parametrize("objective", [QFedAvg(q=5.0), Afl(groups=3)], ids=["qfedavg", "afl"])
def test_one_clip_covers_a_whole_row_whatever_a_client_holds(objective):
    w, params = torch.randn(4, D) * 1e3, torch.zeros(D)
    losses = torch.tensor([[1e9], [0.0], [float("nan")], [3.0]])
    work = Work(torch.ones(4), 0.5, losses, groups=torch.tensor([0, 1, 2, -1]))
    broadcast = {"params": params, **yielded(objective.prelude(params, objective.init(params)))}
    rows, _ = objective.message(w, broadcast, None, work)
    mechanism = CentralGaussian(clip=0.4, noise_multiplier=1.0)
    layout = objective.layout(D)
    sent = mechanism.bound(rows, layout, Streams(0).at("noise", 1), mechanism.init())
    norms = sent.rows.double().norm(dim=1)
    assert float(norms.max()) <= sent.bound == 0.4
    assert not sent.rows[2].any()
    assert layout.length == rows.shape[1]


def test_clips_by_group_shorten_no_row_below_its_groups():
    objective, params = GroupClip(group_clips=[0.2, 5.0]), torch.zeros(3)
    w = torch.tensor([[3.0, 4.0, 0.0], [3.0, 4.0, 0.0], [0.1, 0.0, 0.0], [30.0, 40.0, 0.0]])
    work = Work(torch.ones(4), 0.1, groups=torch.tensor([0, 1, 0, -1]))
    rows, _ = objective.message(w, {"params": params}, None, work)
    assert rows.norm(dim=1).tolist() == pytest.approx([0.2, 5.0, 0.1, 5.0])
    torch.testing.assert_close(rows[0] / 0.2, w[0] / 5.0)


def test_no_clip_by_group_loosens_the_clip_of_all(tmp_path):
    """What a group's clip says has no part in the proof: rows are clipped as ever."""
    rounds = Rounds(tmp_path, objective=GroupClip(group_clips=[100.0]), clip=0.05, noise=0.0)
    exchange = Exchange(
        "train",
        {"params": rounds.state.params, "center": torch.zeros(D)},
        rounds.algorithm.objective.layout(D),
    )
    cohort = rounds.algorithm.draw(1, rounds.world.population, rounds.world.streams)
    assert len(cohort.clients) > 1
    total = rounds.summed(exchange, cohort)
    assert float(total.total.norm()) <= 0.05 * len(cohort.clients)
    assert total.bound == 0.05


def test_a_client_is_in_the_group_of_most_of_its_examples():
    federation = population((3, 9, 0, 4))
    groups = ClientGroups.by("label", Form.of(federation.examples), 0)
    labels = federation.examples.y.numpy()
    wanted = [
        np.bincount(labels[start:end]).argmax() if end > start else -1
        for start, end in itertools.pairwise(federation.offsets)
    ]
    assert groups.of(federation, np.arange(4)).tolist() == wanted
    assert groups.names == ("0", "1", "2")


def test_or_in_that_of_its_site():
    federation = replace(population((3, 9, 4)), sites=np.array([1, 0, 1]))
    groups = ClientGroups.by("site", Form.of(federation.examples), 2)
    assert groups.of(federation, np.array([0, 1, 2])).tolist() == [1, 0, 1]
    nowhere = Federation(federation.examples, federation.offsets, federation.test)
    assert groups.of(nowhere, np.array([0])).tolist() == [-1]


@every_case("column, sites", [("site", 0), ("colour", 3), ("", 3)])
def test_what_makes_no_groups_is_refused(column, sites):
    with pytest.raises(Refused, match=r"client\.group is"):
        ClientGroups.by(column, Form.of(population((3,)).examples), sites)
