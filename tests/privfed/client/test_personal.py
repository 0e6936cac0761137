"""Ditto, APFL, IFCA and Per-FedAvg against their papers, and where they are FedAvg."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import CLASSES, FEATURES, Rounds, built, population, set_fields, trainer
from lanes import every_case, mostly_slow
from papers import full_batches, gradients, quadratics

from privfed.client.autotune import first_broadcast
from privfed.client.batches import plan_batches
from privfed.client.descent import LocalStep
from privfed.client.objective import Sgd
from privfed.client.objectives.personal.ifca import Ifca
from privfed.client.objectives.personal.next_to_global import Apfl, Ditto
from privfed.client.objectives.personal.per_fedavg import HessianFree, PerFedAvg
from privfed.core.streams import Streams
from privfed.data.federation import Examples, Federation
from privfed.models.recipes import Logistic, Mlp
from privfed.privacy.clipping import clip_rows
from privfed.privacy.mechanisms.none import NoPrivacy

CLOSE = {"rtol": 1e-3, "atol": 1e-5}
WAYS = pytest.mark.parametrize("way", ["stacked", "loop"])
IDS = np.arange(4)


def remembered(rounds, state):
    """What each client keeps after `rounds`, and a newcomer's is of the model after them."""
    unseen = rounds.algorithm.objective.unseen({"params": state.params})
    return rounds.world.states.gather(IDS, unseen)[0]


@WAYS
def test_ditto_is_its_papers_algorithm(tmp_path, way):
    strength, lr = 0.3, 0.5
    rounds = full_batches(tmp_path, Ditto(strength=strength, personal_rate=0.4), way=way)
    gradient = gradients(rounds)
    x = rounds.state.params.clone()
    models = [x.clone() for _ in IDS]
    for _ in range(3):
        ends = []
        for client in IDS:
            w = x.clone()
            for _ in range(2):
                w = w - lr * gradient(client, w)
                pull = strength * (models[client] - x)
                models[client] = models[client] - 0.4 * lr * (
                    gradient(client, models[client]) + pull
                )
            ends.append(w)
        x = torch.stack(ends).mean(0)
    after = rounds.run(3)
    torch.testing.assert_close(after.params, x, **CLOSE)
    torch.testing.assert_close(remembered(rounds, after), torch.stack(models), **CLOSE)


@WAYS
@every_case("adaptive", [False, True], ids=["fixed", "adaptive"])
def test_apfl_is_its_papers_algorithm(tmp_path, way, adaptive):
    lr = 0.5
    rounds = full_batches(tmp_path, Apfl(alpha=0.3, adaptive=adaptive), way=way)
    gradient = gradients(rounds)
    x = rounds.state.params.clone()
    models, alpha = [x.clone() for _ in IDS], [0.3] * 4
    for _ in range(3):
        ends = []
        for client in IDS:
            w = x.clone()
            for step in range(2):
                v, a = models[client], alpha[client]
                mixed = gradient(client, a * v + (1 - a) * w)
                if adaptive and not step:
                    slope = float((v - w) @ mixed)
                    alpha[client] = min(max(a - lr * slope, 0.0), 1.0)
                models[client] = v - lr * a * mixed
                w = w - lr * gradient(client, w)
            ends.append(w)
        x = torch.stack(ends).mean(0)
    after = rounds.run(3)
    torch.testing.assert_close(after.params, x, **CLOSE)
    states = remembered(rounds, after)
    torch.testing.assert_close(states[:, :-1], torch.stack(models), **CLOSE)
    assert states[:, -1].tolist() == pytest.approx(alpha, rel=1e-3)
    assert len({round(a, 6) for a in alpha}) == (4 if adaptive else 1)


@pytest.mark.parametrize("away, end", [(-9.0, 0.0), (9.0, 1.0)], ids=["global", "local"])
def test_an_adaptive_mixture_stays_one(away, end):
    """A weight that a long step takes beyond an end is cut to it."""
    gradient = torch.tensor([[1.0, -2.0]])
    v = -away * gradient
    step = LocalStep(
        *(torch.zeros(1, 2), gradient, gradient, None, torch.cat([v, torch.full((1, 1), 0.5)], 1)),
        *(0, torch.zeros(1), torch.ones(1), 1.0),
    )
    _, carried = Apfl(adaptive=True).along(step, {})
    assert carried[0, -1] == end


@every_case("objective", [Ditto(strength=0.7), Apfl(alpha=0.4)], ids=["ditto", "apfl"])
@WAYS
def test_a_row_is_fedavgs_whatever_a_client_keeps(objective, way):
    """So a round is charged as FedAvg's: what is kept changes no number of what is sent."""
    rows = rows_with_states(objective, way)
    plain = trained(Sgd(), None, way)[0]
    for row in rows:
        torch.testing.assert_close(row, plain)
    assert torch.equal(*rows)


class Leaking(Ditto):
    """A mutation: the personal model is sent."""

    def message(self, w, broadcast, state, work):
        return work.carried - broadcast["params"], work.carried


def test_a_row_with_what_is_kept_in_it_is_caught():
    first, second = rows_with_states(Leaking(), "stacked")
    assert not torch.allclose(first, second)


def rows_with_states(objective, way):
    made = trainer(population((3, 9, 4)))
    params = made.network.initial_params
    unseen = objective.unseen({"params": params})
    states = [unseen.expand(3, -1) + shift for shift in (0.0, 0.3)]
    return [trained(objective, state, way)[0] for state in states]


def trained(objective, state, way, sizes=(3, 9, 4), **changes):
    made = trainer(population(sizes), way=way, **changes)
    made = replace(made, objective=objective)
    ids = np.arange(len(sizes))
    keys = Streams(3, simulated=True).at("shuffle", 1, ids)
    return made.train(ids, first_broadcast(made), state, keys)


@WAYS
def test_without_a_pull_a_personal_model_is_trained_by_its_client_alone(way):
    made = trainer(population((3, 9, 4)), way=way)
    states = made.network.initial_params + torch.arange(3.0)[:, None] / 10
    _, after = trained(Ditto(strength=0.0), states, way)
    keys = Streams(3, simulated=True).at("shuffle", 1, np.arange(3))
    for client in range(3):
        alone = made.train(np.arange(3), {"params": states[client]}, None, keys)[0][client]
        torch.testing.assert_close(after[client], states[client] + alone, **CLOSE)


def test_at_its_ends_a_mixture_is_the_global_or_the_local_model():
    params = trainer(population((3, 9, 4))).network.initial_params
    state = torch.cat([params + 1, torch.zeros(1)]).expand(3, -1)
    _, after = trained(Apfl(alpha=0.0), state, "stacked")
    assert torch.equal(after, state), "nobody's own model moves"
    global_one = Apfl().personal({"params": params + 2}, after, None)
    torch.testing.assert_close(global_one, (params + 2).expand(3, -1))
    local = torch.cat([params + 1, torch.ones(1)]).expand(3, -1)
    _, alone = trained(Apfl(), local, "stacked")
    _, ditto = trained(Ditto(strength=0.0), (params + 1).expand(3, -1), "stacked")
    torch.testing.assert_close(Apfl().personal({"params": params}, alone, None), ditto)


@WAYS
@every_case("free", [False, True], ids=["first-order", "hessian-free"])
def test_per_fedavg_is_its_papers_algorithm(way, free):
    """Steps by hand, over the batches that clients go through."""
    objective = HessianFree(inner_lr=0.2, difference=0.01) if free else PerFedAvg(inner_lr=0.2)
    sizes = (4, 8, 12)
    rows, _ = trained(objective, None, way, sizes, epochs=5)
    made = trainer(population(sizes), epochs=5)
    keys = Streams(3, simulated=True).at("shuffle", 1, np.arange(3))
    plan = plan_batches(made.federation, np.arange(3), keys, np.full(3, 5), 4)
    net, lr = made.network, 0.5
    for client, row in enumerate(rows):
        w = net.initial_params.clone()
        batches = [
            made.federation.gather(torch.from_numpy(plan.rows[client, step]))
            for step in range(plan.steps[client])
        ]
        each = 3 if free else 2
        for first in range(0, len(batches) - each + 1, each):
            first_batch, second, *third = batches[first : first + each]
            g = net.gradient(w - 0.2 * net.gradient(w, *first_batch), *second)
            if free:
                ahead, behind = (net.gradient(w + s * 0.01 * g, *third[0]) for s in (1, -1))
                g = g - 0.2 * (ahead - behind) / 0.02
            w = w - lr * g
        torch.testing.assert_close(row, w - net.initial_params, **CLOSE)


def test_the_hessian_free_product_is_that_with_the_hessian():
    made = trainer(population((4, 4, 4)), network=built(Mlp(hidden=[3]), (FEATURES,), CLASSES))
    net, (x, y) = made.network, made.federation.gather(torch.arange(4))
    g = net.gradient(net.initial_params, x, y)

    def loss(w):
        return net.losses(w, x, y).mean()

    _, exact = torch.autograd.functional.hvp(loss, net.initial_params, g)
    ahead, behind = (net.gradient(net.initial_params + s * 0.01 * g, x, y) for s in (1, -1))
    torch.testing.assert_close((ahead - behind) / 0.02, exact, rtol=1e-2, atol=1e-3)


def test_a_rate_of_zero_moves_nothing():
    for objective in (PerFedAvg(), HessianFree()):
        rows, _ = trained(objective, None, "stacked", lr=0.0)
        assert not rows.any()


@WAYS
def test_ifca_is_its_papers_algorithm(tmp_path, way):
    """With k = 3, from the models that it begins with; and a cluster nobody chooses stays."""
    objective = Ifca(clusters=3, spread=1.0, least_share=0.01)
    rounds = full_batches(tmp_path, objective, way=way)
    gradient, lr = gradients(rounds), 0.5
    federation, net = rounds.local.federation, rounds.local.network
    clusters = rounds.state.objective["clusters"].clone()
    chosen = set()
    for _ in range(3):
        members = {j: [] for j in range(3)}
        for client in IDS:
            x, y = federation.gather(torch.arange(*federation.offsets[client : client + 2]))
            losses = [float(net.losses(model, x, y).mean()) for model in clusters]
            j = int(np.argmin(losses))
            w = clusters[j].clone()
            for _ in range(2):
                w = w - lr * gradient(client, w)
            members[j].append(w)
        chosen |= {j for j, ends in members.items() if ends}
        clusters = torch.stack(
            [torch.stack(e).mean(0) if e else clusters[j] for j, e in members.items()]
        )
        largest = max(members, key=lambda j: (len(members[j]), -j))
    after = rounds.run(3)
    assert len(chosen) > 1
    torch.testing.assert_close(after.objective["clusters"], clusters, **CLOSE)
    torch.testing.assert_close(after.params, clusters[largest], **CLOSE)


def test_one_cluster_is_fedavg(tmp_path):
    single = full_batches(tmp_path / "one", Ifca(clusters=1)).run(3)
    plain = full_batches(tmp_path / "plain", Sgd()).run(3)
    torch.testing.assert_close(single.params, plain.params)


def test_a_row_of_ifca_is_one_slot_and_its_count():
    """Under one clip, which cuts both alike; and nobody can claim to count for more than one."""
    objective = Ifca(clusters=3, spread=1.0, count_scale=0.5)
    rows, _ = trained(objective, None, "stacked", sizes=(3, 9, 0, 4))
    d = (FEATURES + 1) * CLASSES
    slots, counts = rows[:, : 3 * d].view(4, 3, d), rows[:, 3 * d :]
    assert counts.sum(1).tolist() == [0.5, 0.5, 0.0, 0.5], "who holds nothing is in no cluster"
    assert torch.equal(slots.abs().sum(2) > 0, counts > 0)
    assert torch.equal(objective.admitted(rows), rows)
    claims = torch.tensor([[9.0, 8, 9], [-1, 0.1, 0], [0, -2, -9], [0, 0, 0]])
    lies = torch.cat([rows[:, : 3 * d] + 9, claims], dim=1)
    admitted = objective.admitted(lies)
    sent = admitted[:, : 3 * d].view(4, 3, d)
    counts = admitted[:, 3 * d :].tolist()
    assert counts == [[0.5, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    assert torch.equal(sent[0, 0], lies[0, :d]), "of slots as large the first"
    assert not sent[0, 1:].any(), "an update for clusters that it is no member of"
    assert not sent[2:].any()
    clipped = clip_rows(rows, 0.1).rows
    assert clipped.norm(dim=1).max() <= 0.1 + 1e-6
    full, cut = (each[0, 3 * d :].max() for each in (rows, clipped))
    torch.testing.assert_close(clipped[0] / cut, rows[0] / full)


def test_what_noise_says_of_a_small_cluster_is_floored():
    objective = Ifca(clusters=2, count_scale=0.1, least_share=0.5)
    memory = objective.init(torch.zeros(3))
    released = torch.tensor([1.0, 1, 1, 2, 2, 2, 0.08, -0.3])
    update, after = objective.conclude({}, released, memory, None)
    moved = after["clusters"] - memory["clusters"]
    torch.testing.assert_close(moved[0], torch.full((3,), 1.0 / 0.8))
    torch.testing.assert_close(moved[1], torch.full((3,), 2.0 / 0.25))
    torch.testing.assert_close(update, after["clusters"][0])


def opposed(clients=8, size=12):
    """Two groups of clients who agree on everything but what a label is called."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(clients * size, FEATURES)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    group = np.repeat(np.arange(clients) % 2, size)
    examples = Examples(torch.from_numpy(x), torch.from_numpy(np.where(group, 1 - y, y)), 2)
    return Federation(examples, np.arange(clients + 1) * size, examples)


def right(rounds, models):
    """The mean accuracy of clients' models `[c, d]`, each on its client's examples."""
    federation, net = rounds.local.federation, rounds.local.network
    scores = []
    for client, model in enumerate(models):
        x, y = federation.gather(torch.arange(*federation.offsets[client : client + 2]))
        scores.append(float((net.outputs(model, x).argmax(1) == y).float().mean()))
    return float(np.mean(scores))


OPPOSED = {
    "ditto": Ditto(strength=0.1),
    "apfl": Apfl(alpha=0.5, adaptive=True),
    "ifca": Ifca(clusters=2, spread=0.5),
}


@pytest.mark.parametrize("name", list(OPPOSED))
def test_groups_with_opposite_labels_are_served_where_one_model_is_at_chance(tmp_path, name):
    objective, federation = OPPOSED[name], opposed()
    net = built(Logistic(), (FEATURES,), 2)
    rounds = Rounds(tmp_path, (12,) * 8, federation=federation, size=8, objective=objective,
                    mechanism=NoPrivacy(), network=net, chunk=8)  # fmt: skip
    state = rounds.run(12)
    ids = np.arange(8)
    assert right(rounds, state.params.expand(8, -1)) < 0.65
    broadcast = {"params": state.params}
    if rounds.world.states:
        states = rounds.world.states.gather(ids, objective.unseen(broadcast))[0]
        models = objective.personal(broadcast, states, None)
    else:
        sent = state.objective["clusters"].flatten()
        keys = Streams(0, simulated=True).at("measure", 0, ids)
        measured = rounds.local.losses(ids, sent, keys)
        models = objective.personal({"params": sent}, None, measured)
    assert right(rounds, models) > 0.9


ADAPTING = {"reptile": Sgd(), "fo": PerFedAvg(inner_lr=2.0), "hf": HessianFree(inner_lr=2.0)}


@pytest.mark.parametrize("name", list(ADAPTING))
def test_a_model_of_opposed_groups_is_right_after_a_step_of_each_clients_own(tmp_path, name):
    rounds = Rounds(tmp_path, (12,) * 8, federation=opposed(), size=8, objective=ADAPTING[name],
                    mechanism=NoPrivacy(), network=built(Logistic(), (FEATURES,), 2),
                    chunk=8)  # fmt: skip
    params = rounds.run(5).params
    keys = Streams(0, simulated=True).at("measure", 0, np.arange(8))
    adapted = params - 2.0 * rounds.local.gradients(np.arange(8), params, keys)
    assert right(rounds, params.expand(8, -1)) < 0.65
    assert right(rounds, adapted) > 0.85


@pytest.mark.parametrize(
    "free", mostly_slow([False, True], False, names=["first-order", "hessian-free"])
)
def test_on_quadratics_per_fedavg_ends_where_its_own_gradient_is_zero(tmp_path, free):
    """Of mean f_k(w - a grad f_k(w)), or of its first-order part; and not where FedAvg ends."""
    a, kind = 0.05, HessianFree if free else PerFedAvg
    rounds, best = quadratics(tmp_path, kind(inner_lr=a), size=8)
    set_fields(rounds.local, epochs=3 if free else 2)
    net, federation = rounds.local.network, rounds.local.federation
    zero, eye = torch.zeros(4, dtype=torch.float64), torch.eye(4, dtype=torch.float64)
    left, right = torch.zeros_like(eye), torch.zeros_like(zero)
    for client in range(8):
        x, y = federation.gather(torch.arange(6 * client, 6 * client + 6))

        def loss(w, x=x, y=y):
            return net.losses(w, x.double(), y.double()).mean()

        hessian = torch.autograd.functional.hessian(loss, zero)
        slope = torch.autograd.functional.jacobian(loss, zero)
        inner = eye - a * hessian
        weight = inner @ inner if free else inner
        left, right = left + weight @ hessian, right + weight @ slope
    wanted = torch.linalg.solve(left, -right).float()
    torch.testing.assert_close(rounds.run(400).params, wanted, rtol=1e-2, atol=1e-2)
    assert (wanted - best).norm() > 0.1
