"""Local training is E epochs of minibatch SGD, exactly, however many clients go at once."""

import copy
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import CLASSES, FEATURES, Rounds, population, trainer
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import every_case
from torch import nn

from privfed.client import autotune
from privfed.client.autotune import fastest
from privfed.client.batches import plan_batches, steps
from privfed.client.objectives.fedprox import FedProx
from privfed.client.trainer import LocalTrainer
from privfed.core.streams import Streams
from privfed.data.federation import Federation
from privfed.models.recipes import Mlp, UserNetwork

STREAMS = Streams(3, simulated=True)
SIZES = (3, 9, 4, 1, 0, 12, 5, 2)


def keys(ids, round=1):
    return STREAMS.at("shuffle", round, np.asarray(ids))


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 13), min_size=1, max_size=6),
    epochs=st.integers(1, 3),
    batch_size=st.integers(1, 8),
)
def test_every_epoch_is_a_permutation_cut_into_batches(sizes, epochs, batch_size):
    if not sum(sizes):
        return
    federation = population(sizes)
    ids = np.arange(len(sizes))
    batches = plan_batches(federation, ids, keys(ids), epochs, batch_size)
    np.testing.assert_array_equal(batches.steps, steps(np.array(sizes), epochs, batch_size))
    for k, size in enumerate(sizes):
        own = np.arange(federation.offsets[k], federation.offsets[k + 1])
        per_epoch = -(-size // batch_size)
        assert not batches.mask[k, epochs * per_epoch :].any()
        for epoch in range(epochs):
            here = slice(epoch * per_epoch, (epoch + 1) * per_epoch)
            seen = batches.rows[k, here][batches.mask[k, here]]
            assert sorted(seen) == own.tolist()
            counts = batches.mask[k, here].sum(1)
            assert (counts[:-1] == batch_size).all()
            assert per_epoch == 0 or counts[-1] == size - (per_epoch - 1) * batch_size


@every_case("most", [1, 3, 5, 100])
def test_at_most_so_many_steps_are_the_first_of_all(most):
    federation = population([3, 9, 0, 4])
    ids = np.arange(4)
    every = plan_batches(federation, ids, keys(ids), 2, 2)
    some = plan_batches(federation, ids, keys(ids), 2, 2, most)
    assert some.steps.tolist() == [min(most, total) for total in (4, 10, 0, 4)]
    count = some.rows.shape[1]
    assert count == min(most, 10)
    for client, taken in enumerate(some.steps):
        np.testing.assert_array_equal(some.rows[client, :taken], every.rows[client, :taken])
        np.testing.assert_array_equal(some.mask[client, :taken], every.mask[client, :taken])
        assert not some.mask[client, taken:].any()


@pytest.mark.parametrize("way", ["stacked", "loop"])
def test_one_step_a_round_is_a_gradient_of_one_batch(way):
    federation, ids = population([3, 9, 4]), np.arange(3)
    local = trainer(federation, way=way, epochs=2, batch_size=2, most_steps=1)
    params = local.network.initial_params
    rows, _ = local.train(ids, {"params": params}, None, keys(ids))
    first = plan_batches(federation, ids, keys(ids), 1, 2)
    for client in range(3):
        x, y = federation.gather(torch.from_numpy(first.rows[client, 0]))
        gradient = local.network.gradient(params, x, y)
        torch.testing.assert_close(rows[client], -local.lr * gradient, rtol=1e-4, atol=1e-6)


def test_epochs_are_shuffled_afresh_and_differ_between_rounds():
    federation = population([40])
    ids = np.array([0])
    batches = plan_batches(federation, ids, keys(ids), 2, 40)
    first, second = batches.rows[0]
    assert not np.array_equal(first, second)
    other = plan_batches(federation, ids, keys(ids, round=2), 2, 40).rows[0, 0]
    assert not np.array_equal(first, other)


def by_torch(local, module, ids, params):
    """An independent reference: an nn.Module and torch.optim.SGD, one client after the other."""
    rows = []
    for k in ids:
        net = copy.deepcopy(module).requires_grad_(True)
        nn.utils.vector_to_parameters(params.clone(), net.parameters())
        optimizer = torch.optim.SGD(net.parameters(), lr=local.lr)
        batches = plan_batches(
            local.federation, np.array([k]), keys([k]), local.epochs, local.batch_size
        )
        for step in range(batches.steps[0]):
            index = torch.from_numpy(batches.rows[0, step][batches.mask[0, step]])
            optimizer.zero_grad()
            x, y = local.federation.gather(index)
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        rows.append(nn.utils.parameters_to_vector(net.parameters()).detach() - params)
    return torch.stack(rows)


@every_case("way", ["stacked", "loop"])
@every_case("model", [None, Mlp(hidden=[7, 4])])
@every_case("batch_size", [1, 4, 50])
def test_training_equals_torch_optim_one_client_at_a_time(way, model, batch_size):
    changes = {"model": model} if model else {}
    local = trainer(population(SIZES), way=way, batch_size=batch_size, epochs=3, **changes)
    generator = torch.Generator().manual_seed(1)
    params = 0.1 * torch.randn(local.network.shapes.length, generator=generator)
    ids = np.arange(len(SIZES))
    rows, _ = local.train(ids, {"params": params}, None, keys(ids))
    expected = by_torch(local, local.network.module, ids, params)
    torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-6)
    assert (rows[4] == 0).all(), "a client without examples does not move"
    assert (rows[[0, 1, 2, 3]].norm(dim=1) > 0).all()


@pytest.mark.parametrize("way", ["stacked", "loop"])
def test_no_clients_give_no_rows(way):
    local = trainer(population(SIZES), way=way)
    ids = np.array([], dtype=np.int64)
    rows, _ = local.train(ids, {"params": local.network.initial_params}, None, keys(ids))
    assert rows.shape == (0, local.network.shapes.length)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_one_clients_bad_example_reaches_no_other_client(bad):
    """Padding shows row 0 of the store to everybody; it must not leak, not even as NaN."""
    clean, spoiled = population(SIZES), population(SIZES)
    spoiled.examples.x[0] = bad
    ids = np.arange(len(SIZES))
    rows = [
        trainer(federation).train(
            ids, {"params": trainer(clean).network.initial_params}, None, keys(ids)
        )[0]
        for federation in (clean, spoiled)
    ]
    torch.testing.assert_close(rows[0][1:], rows[1][1:], rtol=0, atol=0)
    assert not rows[1][0].isfinite().all()


@every_case("chunk", [1, 2, 5, 100])
def test_chunks_do_not_matter(tmp_path, chunk):
    reference = Rounds(tmp_path, SIZES, noise=0.0, size=8, chunk=3).released()
    other = Rounds(tmp_path, SIZES, noise=0.0, size=8, chunk=chunk).released()
    np.testing.assert_allclose(other, reference, rtol=1e-5, atol=1e-8)


def test_the_measured_way_is_one_that_was_offered():
    local = trainer(population(SIZES))
    fastest_way = fastest(local, cohort=20, way="auto", chunk=0)
    way, chunk = fastest_way.way, fastest_way.chunk
    assert way in ("stacked", "loop")
    assert 1 <= chunk <= 128
    loop = fastest(local, cohort=20, way="loop", chunk=7)
    assert (loop.way, loop.chunk) == ("loop", 7)
    assert loop.seconds > 0
    assert fastest(local, cohort=20, way="stacked", chunk=0).way == "stacked"


@pytest.fixture
def trained_ways(monkeypatch):
    """How made-up clients are trained, and how many at once, by every call."""
    ways, train = [], LocalTrainer.train

    def counted(self, ids, *rest, **named):
        ways.append((self.way, len(ids)))
        return train(self, ids, *rest, **named)

    monkeypatch.setattr(LocalTrainer, "train", counted)
    return ways


def test_small_models_are_trained_in_the_largest_chunks_without_a_comparison(trained_ways):
    for asked in ("auto", "stacked"):
        best = fastest(trainer(population(SIZES)), cohort=100, way=asked, chunk=0)
        assert (best.way, best.chunk) == ("stacked", 128)
        assert best.seconds > 0
    assert set(trained_ways) == {("stacked", 128)}
    assert fastest(trainer(population(SIZES)), cohort=3, way="auto", chunk=0).chunk == 6


class Unknown(nn.Linear):
    """A layer that may compute anything, as far as those are concerned who know linear ones."""


@pytest.mark.parametrize(
    "local",
    [
        trainer(population(SIZES), model=Mlp(hidden=[2000])),
        trainer(population(SIZES), model=UserNetwork.of(lambda: Unknown(FEATURES, CLASSES))()),
        replace(trainer(population(SIZES)), objective=FedProx(mu=0.1)),
    ],
    ids=["large", "unknown layers", "another objective"],
)
def test_other_models_and_objectives_are_measured(local, trained_ways):
    fastest(local, cohort=20, way="auto", chunk=0)
    assert {way for way, _ in trained_ways} == {"stacked", "loop"}
    assert len(set(trained_ways)) > 3


def test_chunks_that_are_given_are_measured(trained_ways):
    fastest(trainer(population(SIZES)), cohort=20, way="auto", chunk=1)
    assert {way for way, _ in trained_ways} == {"stacked", "loop"}


def test_the_rows_of_a_chunk_are_bounded(monkeypatch):
    """Memory does not grow with chunk times model; what was asked for is done."""
    monkeypatch.setattr(autotune, "_SMALL", 0)
    local = trainer(population(SIZES))
    length = len(local.network.initial_params)
    monkeypatch.setattr(autotune, "_MOST", 3 * length)
    assert fastest(local, cohort=20, way="stacked", chunk=0).chunk == 3
    assert fastest(local, cohort=20, way="stacked", chunk=5).chunk == 5
    monkeypatch.setattr(autotune, "_MOST", 2 * length - 1)
    alone = fastest(local, cohort=20, way="auto", chunk=0)
    assert (alone.way, alone.chunk) == ("loop", 1)
    assert "two models" in alone.unstacked
    assert fastest(local, cohort=20, way="stacked", chunk=0).chunk == 1


def test_the_measurement_stays_small_whatever_the_batch_size(monkeypatch):
    """A batch size of "everything" is an ordinary wish; 128 clients of it would fill the memory."""
    held = []
    real = Federation.gather
    monkeypatch.setattr(
        Federation,
        "gather",
        lambda self, rows: (held.append(len(self.examples)), real(self, rows))[1],
    )
    fastest(trainer(population(SIZES), batch_size=10**9), cohort=200, way="auto", chunk=0)
    assert 0 < max(held) <= 128 * 64


def test_the_measurement_never_looks_at_the_population(monkeypatch):
    local, seen = trainer(population(SIZES)), []
    real = Federation.gather
    monkeypatch.setattr(
        Federation, "gather", lambda self, rows: (seen.append(self), real(self, rows))[1]
    )
    fastest(local, cohort=20, way="auto", chunk=0)
    assert seen
    own = local.federation.examples.x
    for federation in seen:
        assert federation is not local.federation
        assert not torch.isin(federation.examples.x, own).any()


def test_shapes_flatten_and_view_back():
    local = trainer(population(SIZES), model=Mlp(hidden=[6]))
    shapes = local.network.shapes
    assert shapes.length == FEATURES * 6 + 6 + 6 * CLASSES + CLASSES
    rows = torch.randn(4, shapes.length)
    views = shapes.views(rows)
    assert views["1.weight"].shape == (4, 6, FEATURES)
    torch.testing.assert_close(shapes.flatten({k: v[2] for k, v in views.items()}), rows[2])


def test_a_chunk_of_any_size_is_tried_on_no_more_than_a_cohort():
    began = time.perf_counter()
    fastest_way = fastest(trainer(population(SIZES)), cohort=3, way="stacked", chunk=10**15)
    assert fastest_way.chunk == 10**15
    assert 0 < fastest_way.seconds < time.perf_counter() - began
