"""FedPA: updates weighed by the inverse covariance of samples, in O(n^2 d)."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import population, set_fields, trainer
from lanes import every_case
from papers import full_batches, quadratics

from privfed.client.batches import plan_batches
from privfed.client.descent import LocalStep
from privfed.client.objective import Sgd, Work
from privfed.client.objectives.fedpa import FedPa
from privfed.core.streams import Streams
from privfed.server.fedopt import FedAvg

START = np.array([0.5, -1.0, 2.0])


def by_definition(samples, rho, start=START):
    """The update of samples `[n, d]`: the product with the inverse of the whole covariance."""
    count = len(samples)
    r = 1 / (1 + (count - 1) * rho)
    spread = np.cov(samples, rowvar=False) if count > 1 else 0.0
    covariance = r * np.eye(len(start)) + (1 - r) * spread
    return np.linalg.solve(covariance, samples.mean(0) - start)


def sent(objective, iterates, start=START):
    """The row of a client whose SGD goes through `iterates` `[steps, d]`."""
    broadcast = {"params": torch.from_numpy(start), "rounds": torch.tensor(0.0)}
    carried, w, lr = objective.carry(broadcast, None)[None], torch.from_numpy(start)[None], 0.5
    total = torch.tensor([len(iterates)], dtype=torch.float64)
    for number, iterate in enumerate(torch.from_numpy(iterates)):
        grad, epoch = (w - iterate) / lr, torch.zeros(1, dtype=torch.int64)
        step = LocalStep(w, grad, None, None, carried, number, epoch, total, lr)
        _, carried = objective.along(step, broadcast)
        w = iterate[None]
    work = Work(total, lr, carried=carried)
    return objective.message(w, broadcast, None, work)[0][0].numpy()


def chain(steps, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(steps, 3)) @ np.diag([0.2, 1.0, 3.0]) + [1.0, -1.0, 0.5]


@every_case("rho", [0.0, 0.01, 5.0])
@every_case("samples", [1, 2, 5, 9])
def test_the_dynamic_programme_is_the_product_with_the_inverse(samples, rho):
    iterates = chain(samples)
    row = sent(FedPa(window=1, samples=samples, rho=rho), iterates)
    np.testing.assert_allclose(row, by_definition(iterates, rho), rtol=1e-9)


def test_a_sample_is_the_mean_of_a_window_after_the_burn_in():
    """And steps after the last sample, or before a window is full, count for nothing."""
    iterates = chain(4 + 3 * 2 + 1)
    windows = iterates[4:10].reshape(3, 2, 3).mean(1)
    row = sent(FedPa(burn_in=4, window=2, samples=9, rho=0.3), iterates)
    np.testing.assert_allclose(row, by_definition(windows, 0.3), rtol=1e-9)
    row = sent(FedPa(burn_in=4, window=2, samples=2, rho=0.3), iterates)
    np.testing.assert_allclose(row, by_definition(windows[:2], 0.3), rtol=1e-9)


def test_without_a_sample_and_in_the_first_rounds_an_update_is_plain():
    iterates = chain(5)
    plain = iterates[-1] - START
    np.testing.assert_allclose(sent(FedPa(burn_in=3, window=3), iterates), plain)
    np.testing.assert_allclose(sent(FedPa(window=1, fedavg_rounds=1), iterates), plain)
    assert not np.allclose(sent(FedPa(window=1), iterates), plain)


def exact_samples(count, seed=0):
    """Samples of a quadratic's posterior, and its exact update Sigma^-1 (mu - x)."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(3, 3)) / 2 + np.eye(3)
    mean = np.array([1.0, 0.0, -1.0])
    samples = rng.normal(size=(count, 3)) @ root.T + mean
    return samples, np.linalg.solve(root @ root.T, mean - START)


def error(objective, count):
    samples, exact = exact_samples(count)
    away = sent(objective(window=1, samples=count, rho=1.0), samples) - exact
    return np.linalg.norm(away) / np.linalg.norm(exact)


def test_with_many_samples_a_quadratics_update_approaches_the_exact_one():
    errors = [error(FedPa, count) for count in (10, 40, 160)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.15


class WithoutCenter(FedPa):
    """Samples are not centered: their mean counts as spread."""

    def along(self, step, broadcast):
        direction, carried = super().along(step, broadcast)
        window, mean, *terms = self._parts(carried)
        return direction, torch.cat([window, 0.9 * mean, *terms], dim=1)


def test_a_broken_estimate_does_not_approach_it():
    assert error(WithoutCenter, 160) > 0.5


@pytest.mark.parametrize("way", ["stacked", "loop"])
def test_clients_in_training_draw_their_samples_from_their_path(way):
    sizes, objective = (3, 9, 0, 12), FedPa(burn_in=1, window=2, samples=3, rho=0.5)
    made = replace(trainer(population(sizes), way=way, epochs=3, lr=0.3), objective=objective)
    params, ids = made.network.initial_params + 0.1, np.arange(4)
    keys = Streams(1, simulated=True).at("shuffle", 1, ids)
    broadcast = {"params": params, "rounds": torch.tensor(0.0)}
    rows, _ = made.train(ids, broadcast, None, keys)
    batches = plan_batches(made.federation, ids, keys, 3, made.batch_size)
    for client in (0, 1, 3):
        w, path = params.clone(), []
        for step in range(batches.steps[client]):
            chosen = batches.rows[client, step][batches.mask[client, step]]
            x, y = made.federation.gather(torch.from_numpy(chosen))
            w = w - 0.3 * made.network.gradient(w, x, y)
            path.append(w.double().numpy())
        count = min((len(path) - 1) // 2, 3)
        windows = np.array(path[1 : 1 + 2 * count]).reshape(count, 2, -1).mean(1)
        wanted = by_definition(windows, 0.5, params.double().numpy())
        np.testing.assert_allclose(rows[client].numpy(), wanted, rtol=1e-3, atol=1e-5)
    assert not rows[2].any()


def test_where_the_covariance_stays_the_identity_it_is_fedavg(tmp_path):
    """Of the mean iterate: with one window of one step, FedAvg itself."""
    ours = full_batches(tmp_path / "ours", FedPa(burn_in=1, window=1, samples=1))
    plain = full_batches(tmp_path / "plain", Sgd())
    after = ours.run(3)
    torch.testing.assert_close(after.params, plain.run(3).params)
    assert int(after.objective["rounds"]) == 3


def test_it_ends_nearer_to_the_optimum_of_heterogeneous_quadratics_than_fedavg(tmp_path):
    """With noise of batches, from which it learns how curved each client's loss is."""
    ends = {}
    for objective in (FedPa(window=3, samples=10, rho=0.1), Sgd()):
        rounds, best = quadratics(tmp_path / objective.__class__.__name__, objective, 8)
        rounds.algorithm = replace(rounds.algorithm, server=FedAvg())
        set_fields(rounds.local, batch_size=2)
        ends[type(objective)] = float((rounds.run(20).params - best).norm() / best.norm())
    assert ends[FedPa] < 0.8 * ends[Sgd]
