"""FedLin and FedSplit: as their papers define them, and at rest where all gradients cancel."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import Rounds, population, set_fields, trainer
from lanes import every_case
from papers import full_batches, gradients, quadratics

from privfed.client.batches import plan_batches
from privfed.client.objective import Sgd, Work
from privfed.client.objectives.feddyn import FedDyn
from privfed.client.objectives.fedlin import FedLin
from privfed.client.objectives.fedsplit import FedSplit
from privfed.core.streams import Streams
from privfed.server.fedopt import FedAvg, FedAvgM

SIZES = (3, 9, 0, 4)


@pytest.mark.parametrize("way", ["stacked", "loop"])
def test_fedlin_is_its_papers_step_at_each_clients_own_rate(way):
    made = trainer(population(SIZES), way=way, epochs=3, lr=0.6)
    made = replace(made, objective=FedLin(gradient_scale=0.25))
    net, ids = made.network, np.arange(4)
    params = net.initial_params + 0.1
    g = torch.linspace(-1, 1, len(params))
    keys = Streams(1, simulated=True).at("shuffle", 1, ids)
    rows, _ = made.train(ids, {"params": params, "gradient": g}, None, keys)
    batches = plan_batches(made.federation, ids, keys, 3, made.batch_size)
    before = made.gradients(ids, params, keys)
    for client in (0, 1, 3):
        w, taken = params.clone(), int(batches.steps[client])
        for step in range(taken):
            chosen = batches.rows[client, step][batches.mask[client, step]]
            x, y = made.federation.gather(torch.from_numpy(chosen))
            w = w - 0.6 / taken * (net.gradient(w, x, y) - before[client] + g)
        torch.testing.assert_close(rows[client], w - params, rtol=1e-4, atol=1e-6)
    assert not rows[2].any()


def test_fedlins_gradients_are_scaled_back():
    exchanges = FedLin(gradient_scale=4.0).prelude(torch.zeros(2), {})
    assert next(exchanges).scale == 4.0
    with pytest.raises(StopIteration) as finished:
        exchanges.send(torch.tensor([4.0, 8.0]))
    assert finished.value.value["gradient"].tolist() == [1.0, 2.0]


def test_under_fedlin_clients_go_as_far_whatever_their_number_of_steps():
    """In short steps all go along the cohort's gradient, by eta; under local SGD who has more
    examples goes further, which is the bias that FedLin's rates take away.
    """
    params, g = torch.zeros(18), torch.linspace(-1, 1, 18)
    spread = {}
    for objective in (FedLin(), Sgd()):
        made = replace(trainer(population((4, 12, 8)), epochs=3, lr=1e-3), objective=objective)
        keys = Streams(1).at("shuffle", 1, np.arange(3))
        rows, _ = made.train(np.arange(3), {"params": params, "gradient": g}, None, keys)
        lengths = rows.norm(dim=1)
        spread[type(objective)] = float(lengths.max() / lengths.min())
    assert spread[FedLin] < 1.01
    assert spread[Sgd] > 1.5


@every_case("way", ["stacked", "loop"])
@every_case("s", [0.5, 4.0])
def test_fedsplit_is_its_papers_algorithm(tmp_path, way, s):
    """With proximal steps of two gradient steps from the broadcast model, in plain loops."""
    rounds = full_batches(tmp_path, FedSplit(proximal_step=s), way=way, server=FedAvg())
    gradient, lr = gradients(rounds), 0.5
    x = rounds.state.params.clone()
    z = [x.clone() for _ in range(4)]
    for _ in range(3):
        for client in range(4):
            w, target = x.clone(), 2 * x - z[client]
            for _ in range(2):
                w = w - lr * (gradient(client, w) + (w - target) / s)
            z[client] = z[client] + 2 * (w - x)
        x = torch.stack(z).mean(0)
    torch.testing.assert_close(rounds.run(3).params, x, rtol=1e-3, atol=1e-5)


class Unreflected(FedSplit):
    """Clients step around the model, not around its reflection: FedProx, in effect."""

    def direction(self, grad, w, broadcast, state):
        return grad + (w - broadcast["params"]) / self.proximal_step


class Idle(FedSplit):
    """Who has no example stays where it began."""

    def message(self, w, broadcast, state, work):
        return super().message(w, broadcast, state, replace(work, steps=work.steps + 1))


class ForgetfulServer(FedSplit):
    """The mean over the cohort alone, as if all clients were drawn."""

    def conclude(self, broadcast, released, memory, cohorts):
        return super().conclude(broadcast, released, memory, replace(cohorts, clients=4))


def distance(folder, objective, size, empty, count):
    """How far from the optimum the model is after so many rounds, as a part of the optimum."""
    rounds, best = quadratics(folder, objective, size + empty, empty=empty)
    if isinstance(objective, FedLin):
        set_fields(rounds.local, lr=1.0)  # of ten steps together
    return float((rounds.run(count).params - best).norm() / best.norm())


@every_case(
    "objective, size, empty, count",
    [(FedLin(), 8, 0, 20), (FedSplit(), 8, 0, 20), (FedSplit(), 4, 0, 50), (FedSplit(), 8, 2, 20)],
    ids=["fedlin", "fedsplit", "fedsplit of a cohort", "fedsplit with empty clients"],
)
def test_they_rest_at_the_optimum_of_heterogeneous_quadratics(
    tmp_path, objective, size, empty, count
):
    assert distance(tmp_path, objective, size, empty, count) < 1e-3


@pytest.mark.parametrize("objective", [FedSplit(), FedDyn(alpha=1.0)], ids=["fedsplit", "feddyn"])
def test_another_server_rests_there_too(tmp_path, objective):
    server = FedAvgM(lr=0.5, momentum=0.3)
    rounds, best = quadratics(tmp_path, objective, 8, server=server)
    assert float((rounds.run(60).params - best).norm() / best.norm()) < 1e-3


@every_case(
    "broken, size, empty",
    [(Unreflected(), 8, 0), (ForgetfulServer(), 4, 0), (Idle(), 8, 2)],
    ids=["not reflected", "mean of the cohort", "idle empty clients"],
)
def test_a_broken_fedsplit_does_not(tmp_path, broken, size, empty):
    assert not distance(tmp_path, broken, size, empty, 50) < 0.01


def test_who_has_no_example_is_at_rest_where_its_model_is_reflected():
    objective, x = FedSplit(), torch.tensor([1.0, 2.0])
    broadcast, z = {"params": x, "first": x}, torch.tensor([[3.0, 2.0]])
    row, after = objective.message(x[None], broadcast, z, Work(torch.zeros(1), 0.1))
    assert row.tolist() == [[-4.0, 0.0]]
    assert after.tolist() == [[-1.0, 2.0]]


def test_the_mean_moves_by_the_cohorts_part_of_all_clients(tmp_path):
    rounds = Rounds(tmp_path, objective=FedSplit(), noise=0.0, size=4, server=FedAvgM())
    assert torch.equal(rounds.algorithm.objective.unseen({"first": torch.ones(2)}), torch.ones(2))
    before = rounds.state.params
    after = rounds.run(1)
    change = torch.from_numpy(rounds.released_so_far()[0])
    torch.testing.assert_close(after.objective["mean"], before + change * 4 / 8)
