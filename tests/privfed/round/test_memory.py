"""A round holds few copies of a model, and no rows of a chunk while the next one trains."""

import gc
import weakref

import pytest
import torch
from lanes import mostly_slow
from torch.utils._python_dispatch import TorchDispatchMode

from privfed.client.trainer import LocalTrainer
from privfed.config.reading import load
from privfed.core.streams import Streams
from privfed.core.vector import all_finite
from privfed.privacy.clipping import averaged
from privfed.privacy.mechanism import BoundedSum
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.round.by_sums import BySums
from privfed.round.updates import ClientUpdates
from privfed.run.prepare import prepare

LONG = 300_000


class Allocated(TorchDispatchMode):
    """The bytes of tensors of more than half of `LONG` numbers that operations make, in all."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {tensor.untyped_storage().data_ptr() for tensor in _tensors((args, kwargs or {}))}
        results = function(*args, **(kwargs or {}))
        for tensor in _tensors(results):
            storage = tensor.untyped_storage()
            if tensor.numel() > LONG // 2 and storage.data_ptr() not in given:
                self.bytes += storage.nbytes()
        return results


def _tensors(values):
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    if isinstance(values, list | tuple) or hasattr(values, "mapping"):
        return [tensor for value in values for tensor in _tensors(value)]
    return []


def a_sum():
    numbers = torch.randn(LONG, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return BoundedSum((numbers * 2**20).round() / 2**20, 0.4, 3)


def keys():
    return Streams(0, simulated=True).at("noise/release/0", 1)


@pytest.mark.parametrize("adaptive", [False, True])
def test_central_noise_makes_one_vector_and_the_bits_of_a_whole_one(adaptive):
    mechanism = CentralGaussian(
        clip=0.4, noise_multiplier=1.0, adaptive_clip=adaptive, count_noise=5.0
    )
    total, state = a_sum(), mechanism.init()
    norm = mechanism.encoding(state).bound
    total = BoundedSum(total.total, norm, 3)
    with Allocated() as allocated:
        released, after = mechanism.release(total, 7.0, keys(), state)
    assert allocated.bytes == 4 * LONG
    whole = mechanism.noised(total, keys(), state, slice(0, LONG))
    expected = (whole.total / 7.0).float()
    assert torch.equal(released, expected[:-1] if adaptive else expected)
    again, after_again = mechanism.release(whole, 7.0, keys(), state)
    assert torch.equal(released, again)
    assert after == after_again


def test_averages_and_checks_make_nothing_long_beside_their_result():
    total = a_sum().total
    with Allocated() as allocated:
        average = averaged(total, 3.0)
    assert allocated.bytes == 4 * LONG
    assert torch.equal(average, (total / 3.0).float())
    long = torch.zeros(1 << 22)
    with Allocated() as allocated:
        assert all_finite(long)
    assert not allocated.bytes
    for place, spoiled in ((-1, "nan"), (LONG, "inf"), (0, "-inf"), (7, "nan")):
        long.zero_()[place] = float(spoiled)
        assert not all_finite(long)
    assert all_finite(torch.zeros(0))


def test_what_is_counted_is_seen():
    with Allocated() as allocated:
        (torch.zeros(LONG) * 2.0).double()
    assert allocated.bytes == (4 + 4 + 8) * LONG


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("cohort", mostly_slow([6, 24], 6))
def test_no_row_lives_on_while_the_next_chunk_trains(monkeypatch, private, cohort):
    settings = ["data.clients=24", f"cohort.size={cohort}", "cohort.sampler=fixed_size"]
    settings += ["run.chunk=3", "run.trainer=stacked", "run.randomness=seeded"]
    settings += ["privacy.noise_multiplier=1.0"] if private else ["privacy.mechanism=none"]
    setup = prepare(load(None, ("data.source=digits", *settings)))
    rows, alive = [], []
    train = LocalTrainer.train

    def watched(self, *given):
        gc.collect()
        alive.append(sum(row() is not None for row in rows))
        trained, states = train(self, *given)
        rows.append(weakref.ref(trained))
        return trained, states

    bounded = ClientUpdates.bounded

    def watched_bounds(self, *given):
        sent = bounded(self, *given)
        rows.append(weakref.ref(sent.rows))
        return sent

    monkeypatch.setattr(LocalTrainer, "train", watched)
    monkeypatch.setattr(ClientUpdates, "bounded", watched_bounds)
    total = summed(setup)
    assert alive == [0] * (cohort // 3)
    assert float(total.total.abs().max()) > 0


def summed(setup):
    """The sum of the cohort's answers in round 1, as a round makes it."""
    from types import SimpleNamespace

    from privfed.round.round import play
    from privfed.round.world import World

    algorithm, state = setup.algorithm, setup.initial_state()
    population = setup.federation.population()
    world = World(
        executor=setup.executor,
        population=population,
        ledger=SimpleNamespace(),
        store=SimpleNamespace(),
        streams=setup.streams,
        layers=setup.network.shapes.sizes,
    )
    cohort = algorithm.draw(1, population, setup.streams)
    updates = ClientUpdates(algorithm, world, state, cohort)
    return BySums(algorithm.rule, updates).sum(next(play(algorithm, 1, state)), 0)
