"""FedAvg, FedAvgM and the aggregation of a round, against hand examples and gradient descent."""

import math

import numpy as np
import pytest
import torch
from helpers import MoreThanDeclared, Rounds, population, set_fields, trainer

from accounting.guarantee import guarantee
from defenses.on_rows.median import Median
from privfed.client.exchange import Exchange
from privfed.core.errors import Refused
from privfed.privacy.mechanisms.none import NoPrivacy
from privfed.round import by_sums
from privfed.sampling.cohort import Population
from privfed.sampling.samplers import Poisson
from privfed.secure.summation import Aborted
from privfed.server.fedopt import FedAvg, FedAvgM

SIZES = (3, 9, 4, 1, 6, 12, 5, 2)


def test_fedavg_by_hand():
    params, delta = torch.tensor([1.0, 2.0]), torch.tensor([0.5, -1.0])
    server = FedAvg(lr=2.0)
    moved, state = server.step(params, delta, server.init(params))
    assert moved.tolist() == [2.0, 0.0]
    assert state == {}


def test_fedavgm_by_hand_over_three_steps():
    server = FedAvgM(lr=0.5, momentum=0.9)
    params = torch.zeros(1)
    state = server.init(params)
    for delta, expected in [(1.0, 0.5), (0.0, 0.95), (-1.0, 0.855)]:
        params, state = server.step(params, torch.tensor([delta]), state)
        assert params.item() == pytest.approx(expected)


def test_fedavgm_without_momentum_is_fedavg():
    params, delta = torch.randn(5), torch.randn(5)
    server = FedAvgM(lr=0.7, momentum=0.0)
    moved, _ = server.step(params, delta, server.init(params))
    torch.testing.assert_close(moved, FedAvg(lr=0.7).step(params, delta, {})[0])


def full_batch_rounds(folder, sizes, **changes):
    rounds = Rounds(
        folder, sizes, mechanism=NoPrivacy(), sampler=Poisson(size=len(sizes)), **changes
    )
    local = trainer(population(sizes), lr=0.5, epochs=1, batch_size=1000)
    set_fields(rounds.world.executor, trainer=local)
    return rounds, local


def test_fedavg_with_full_batches_is_gradient_descent_on_everybodys_data(tmp_path):
    """With example weights, one full-batch step each and everybody present."""
    rounds, local = full_batch_rounds(tmp_path, SIZES)
    state = rounds.run(5)
    x, y = local.federation.examples.x, local.federation.examples.y
    params = local.network.initial_params.clone()
    for _ in range(5):
        leaf = params.requires_grad_()
        loss = torch.nn.functional.cross_entropy(local.network.outputs(leaf, x), y)
        (grad,) = torch.autograd.grad(loss, leaf)
        params = (params - 0.5 * grad).detach()
    torch.testing.assert_close(state.params, params, rtol=1e-4, atol=1e-6)


def test_uniform_weights_average_clients_and_example_weights_examples(tmp_path):
    rounds, local = full_batch_rounds(tmp_path, SIZES)
    ids = np.arange(len(SIZES))
    keys = rounds.world.streams.at("shuffle", 1, ids)
    rows, _ = local.train(ids, {"params": local.network.initial_params}, None, keys)
    by_size = rounds.released()[0]
    np.testing.assert_allclose(
        by_size, np.average(rows, axis=0, weights=SIZES), rtol=1e-4, atol=1e-7
    )
    uniform, _ = full_batch_rounds(tmp_path, SIZES)
    set_fields(uniform.world.executor, by_examples=False)
    np.testing.assert_allclose(uniform.released()[0], rows.mean(0), rtol=1e-4, atol=1e-7)


def test_without_privacy_an_empty_cohort_changes_nothing_and_epsilon_is_infinite(tmp_path):
    rounds = Rounds(tmp_path, [0] * 6, mechanism=NoPrivacy(), sampler=Poisson(size=1))
    state = rounds.run(4)
    assert torch.equal(state.params, rounds.state.params)
    assert guarantee(rounds.world.ledger.spending, 1e-5).epsilon == math.inf


def test_a_row_rule_sees_rows_and_shrugs_off_a_hostile_one(tmp_path):
    rounds = Rounds(
        tmp_path, SIZES, mechanism=NoPrivacy(), sampler=Poisson(size=8), rule=Median(), lr=0.1
    )
    ids = np.arange(len(SIZES))
    keys = rounds.world.streams.at("shuffle", 1, ids)
    rows, _ = rounds.local.train(ids, {"params": rounds.state.params}, None, keys)
    np.testing.assert_allclose(rounds.released()[0], np.median(rows, axis=0), rtol=1e-5, atol=1e-7)


def test_an_aborted_sum_leaves_the_round_charged(tmp_path):
    class Aborting:
        def open(self, session, length, encoding):
            raise Aborted

    rounds = Rounds(tmp_path, SIZES, summation=Aborting())
    with pytest.raises(Aborted):
        rounds.run(1)
    assert [charge.round for charge in rounds.world.ledger.charges] == [1]
    assert rounds.store.releases == {}


def test_more_exchanges_than_were_charged_are_never_released(tmp_path):
    rounds = Rounds(tmp_path, SIZES, objective=MoreThanDeclared())
    with pytest.raises(Refused, match="only 1 were declared"):
        rounds.run(1)
    assert len(rounds.store.releases[1]) == 1


def test_an_empty_cohorts_sum_lies_where_the_model_does(tmp_path):
    """On another device than the CPU an empty cohort must not show by failing."""
    rounds = Rounds(tmp_path, [0] * 6, size=1, seed=3)
    cohort = rounds.algorithm.sampler.sample(1, 6, Population.of(np.ones(0)), rounds.world.streams)
    params = torch.zeros(18, device="meta")
    exchange = Exchange(
        "train", {"params": params, "center": params}, rounds.algorithm.objective.layout(18)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_sums, "model_hash", lambda _: b"")
        total = rounds.summed(exchange, cohort)
    assert total.total.device == params.device


def test_a_cohort_larger_than_the_declared_population_is_refused():
    with pytest.raises(Refused, match=r"cohort\.size is 9"):
        Poisson(size=9).witness(1, clients=8)


def test_rate_and_divisor_are_the_configurations_whatever_the_population_holds(tmp_path):
    rounds = Rounds(tmp_path, SIZES, size=4)
    sampler, streams = rounds.algorithm.sampler, rounds.world.streams
    for population_size in (0, 3, 8, 5000):
        cohort = sampler.sample(1, 8, Population.of(np.ones(population_size)), streams)
        assert cohort.divisor == 4.0
        assert cohort.witness.rate == 0.5
        assert (cohort.clients < max(population_size, 1)).all()
