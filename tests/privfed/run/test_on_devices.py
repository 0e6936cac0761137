"""Runs on the CPU, and on a GPU where there is one: the same rows, noise and run."""

import numpy as np
import pytest
import torch
from devices import require_device
from lanes import every_case, mostly_slow
from small import model, same_run, small, stop_after, trained

from privfed.client.device_memory import memory_need, memory_of
from privfed.privacy.clipping import blocks, clip_rows
from privfed.run.prepare import prepare
from privfed.run.process_group import joined
from privfed.run.train import resume, train

SEEDED = "run.randomness=seeded"
CHARACTERS = ("data.source=experiments.benchmarks.work.synthetic:Characters", "client.lr=0.5")
MODELS = {
    "logistic": ("model.name=logistic",),
    "mlp": ("model.name=mlp", "model.hidden=[8]", "client.lr=0.05"),
    "cnn": (
        "data.source=experiments.benchmarks.work.synthetic:Images",
        "model.name=cnn",
        "model.channels=[4]",
        "client.lr=0.01",
    ),
    "lstm": (*CHARACTERS, "model.name=lstm", "model.embedding=4", "model.hidden=8"),
    "gru": (*CHARACTERS, "model.name=experiments.benchmarks.work.characters:Gated"),
}


def rows_of(way, device, *overrides):
    """The cohort's rows at the start, with `way`."""
    setup = prepare(small(SEEDED, f"run.device={device}", f"run.trainer={way}", *overrides))
    ids = np.arange(8)
    keys = setup.streams.at("shuffle", 1, ids)
    broadcast = {"params": setup.network.initial_params}
    rows, _ = setup.executor.trainer.train(ids, broadcast, None, keys)
    assert rows.device.type == torch.device(device).type
    return rows.cpu()


@every_case("kind", MODELS)
def test_stacked_and_one_by_one_train_the_same_rows(kind, device):
    reference = rows_of("loop", "cpu", *MODELS[kind])
    assert reference.norm() > 0.01
    for way in ("stacked", "loop"):
        rows = rows_of(way, device, *MODELS[kind])
        torch.testing.assert_close(rows, reference, rtol=1e-3, atol=1e-5)


def test_clipped_rows_are_within_their_bound(device):
    rows = 10 * torch.randn(50, 3000, generator=torch.Generator().manual_seed(0))
    rows[3], rows[4, 7], rows[5] = torch.inf, torch.nan, 0.0
    for grid in (None, 2.0**-20):
        bounded = clip_rows(rows.to(device), 0.7, grid).rows
        assert bounded.device.type == device.type
        norms = torch.linalg.vector_norm(bounded.cpu(), dim=1, dtype=torch.float64)
        assert float(norms.max()) <= 0.7
        assert norms[[3, 4, 5]].tolist() == [0.0, 0.0, 0.0]
        assert float(norms[0]) > 0.69
        there = clip_rows(rows, 0.7, grid).rows
        torch.testing.assert_close(bounded.cpu(), there, rtol=1e-5, atol=2.0**-19)


def test_blocks_elsewhere_are_larger_and_bounded():
    wide = torch.empty(4, 1 << 25, device="meta")
    assert [(b.start, b.stop) for b in blocks(wide)] == [(0, 1 << 24), (1 << 24, 1 << 25)]


@every_case(
    "mechanism", [(), ("cohort.sampler=cyclic", "cohort.separation=3", "privacy.mechanism=banded")]
)
def test_noise_has_the_same_bits_wherever_rows_lie(mechanism, device, tmp_path):
    """Clients learn nothing, so that a release is its noise; it is drawn on the CPU."""
    bands = ("privacy.bands=3",) if mechanism else ()
    still = (SEEDED, "client.lr=0.0", *mechanism, *bands)
    trained(tmp_path / "cpu", "run.device=cpu", *still)
    trained(tmp_path / "there", f"run.device={device}", *still)
    alike, there = model(tmp_path / "cpu"), model(tmp_path / "there")
    assert any(bool(tensor.any()) for tensor in alike.values())
    for name, tensor in alike.items():
        assert torch.equal(tensor, there[name]), name


@every_case(
    "overrides",
    [
        ("secure.protocol=masks", "cohort.sampler=fixed_size"),
        ("privacy.mechanism=none", "aggregation.rule=median", "aggregation.byzantine=1"),
        ("privacy.mechanism=none", "aggregation.rule=geometric_median"),
        ("client.objective=scaffold", "data.setting=cross_silo", "cohort.sampler=full"),
        ("run.trainer=loop", "run.chunk=1"),
    ],
    ids=["masks", "median", "geometric median", "states", "one by one"],
)
def test_a_run_is_the_same_wherever_it_trains(overrides, device, tmp_path):
    """But for rounding: of a GPU's sums, and to a grid."""
    settings = [*overrides, "cohort.size=0"] if "cohort.sampler=full" in overrides else overrides
    alone = trained(tmp_path / "cpu", SEEDED, "run.device=cpu", *settings)
    there = trained(tmp_path / "there", SEEDED, f"run.device={device}", *settings)
    assert there.updates == alone.updates == 7
    assert there.measures["loss"] == pytest.approx(alone.measures["loss"], rel=1e-3)


@pytest.mark.parametrize("way", ["stacked", "loop"])
@pytest.mark.parametrize("kind", mostly_slow([*MODELS, "sketched"], next(iter(MODELS)), "sketched"))
def test_a_seeded_run_repeats_bit_for_bit(kind, way, device, tmp_path):
    of_kind = MODELS.get(kind, (*MODELS["mlp"], "compression.name=count_sketch"))
    settings = (SEEDED, f"run.device={device}", f"run.trainer={way}", *of_kind)
    for name in ("first", "second"):
        trained(tmp_path / name, *settings)
    same_run(tmp_path / "first", tmp_path / "second")


@every_case("override", ["run.trainer=stacked", "run.trainer=loop"])
def test_a_run_that_is_killed_goes_on_to_the_same_end(override, device, tmp_path, monkeypatch):
    settings = (SEEDED, f"run.device={device}", override)
    trained(tmp_path / "whole", *settings)
    with monkeypatch.context() as patch:
        stop_after(4, patch)
        with pytest.raises(KeyboardInterrupt):
            train(small(*settings), tmp_path / "run")
    resume(tmp_path / "run", lambda _: small(*settings))
    same_run(tmp_path / "whole", tmp_path / "run")


def test_mixed_precision_trains(device):
    wide = (*MODELS["mlp"], "client.batch_size=32")  # thinner products stay in float32
    full = rows_of("stacked", device, *wide)
    mixed = rows_of("stacked", device, *wide, "run.precision=mixed")
    assert not torch.equal(full, mixed)
    assert (mixed - full).norm() < 0.1 * full.norm()


@pytest.mark.slow
def test_two_processes_on_one_device_are_one(device, tmp_path):
    """They share a card, so that sums go by way of the CPU."""
    settings = (SEEDED, f"run.device={device}", "run.trainer=loop", "run.chunk=1")
    trained(tmp_path / "one", *settings)
    with joined(2) as ranks:
        train(small(*settings), tmp_path / "two", ranks=ranks)
    same_run(tmp_path / "one", tmp_path / "two")


def test_what_clients_take_of_a_gpu_is_measured():
    memory = memory_of(require_device("cuda"))
    numbers = 1 << 22

    def train_many(clients):
        torch.ones(clients, numbers, device="cuda").mul(2.0)

    need = memory_need(train_many, memory, length=1)
    assert need.each == pytest.approx(8 * numbers, rel=0.1)
    assert 0 < need.clients(memory.free()) * need.each < memory.free()
