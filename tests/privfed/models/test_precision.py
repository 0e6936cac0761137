"""Mixed precision: rougher gradients, within a tolerance, and nothing else."""

import tomllib
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import built, population, trainer
from lanes import every_case, mostly_slow
from small import model, small, trained
from torch import nn

from privfed.config.reading import read_resolved
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.federation import Federation
from privfed.models.networks import Cnn
from privfed.models.recipes import Mlp
from privfed.plan.plan import plan
from privfed.report.plan import plan_table
from privfed.run import assemble
from privfed.run.forecast import forecast
from privfed.run.prepare import prepare
from privfed.run.process_group import RankZero
from privfed.run.train import resume

MIXED, FAST = "run.precision=mixed", "run.precision=fast"
ROWS = ("model.name=mlp", "client.batch_size=40", "data.size_min=40")
"""Enough rows for products that are rounded."""


@every_case("way", ["stacked", "loop"])
@every_case("model", ["mlp", f"{__name__}:residual"])
def test_gradients_are_rougher_but_parameters_scores_rows_and_charges_are_not(way, model):
    full, rough = (
        prepare(
            small(*ROWS, f"model.name={model}", f"run.trainer={way}", f"run.precision={precision}")
        )
        for precision in ("full", "mixed")
    )
    x, y = full.federation.examples.synthetic(40)
    exact, rough_gradient = (
        net.gradient(net.initial_params, x, y) for net in (full.network, rough.network)
    )
    assert rough_gradient.dtype == torch.float32
    assert 1e-5 < (rough_gradient - exact).norm() / exact.norm() < 0.05
    assert torch.equal(full.network.initial_params, rough.network.initial_params)
    outputs = [net.outputs(net.initial_params, x) for net in (full.network, rough.network)]
    assert torch.equal(*outputs)
    stacked = [
        net.stacked_outputs(net.initial_params[None], x[None])
        for net in (full.network, rough.network)
    ]
    assert torch.equal(*stacked)
    ids = np.arange(full.federation.clients)
    keys = full.streams.at("shuffle", 1, ids)
    rows = [
        setup.executor.trainer.train(ids, {"params": setup.network.initial_params}, None, keys)[0]
        for setup in (full, rough)
    ]
    assert rows[1].dtype == torch.float32
    assert not torch.equal(rows[1], rows[1].bfloat16().float())
    assert 1e-5 < (rows[1] - rows[0]).norm() / rows[0].norm() < 0.05
    assert full.plan.event == rough.plan.event
    assert full.plan.mechanism == rough.plan.mechanism


@pytest.mark.parametrize(
    ("model", "way"),
    mostly_slow(
        [(name, way) for name in ("mlp", f"{__name__}:residual") for way in ("stacked", "loop")],
        *(("mlp", "stacked"), (f"{__name__}:residual", "loop")),
    ),
)
def test_steps_below_the_resolution_of_bfloat16_add_up(way, model):
    """At 1 it resolves a 256th: 100 steps of a 100th of that would leave weights where they are."""
    settings = ("client.lr=0.001", "client.epochs=100", f"run.trainer={way}")
    moves = []
    for precision in ("full", "mixed"):
        changes = (f"model.name={model}", *settings, f"run.precision={precision}")
        local = prepare(small(*ROWS, *changes)).executor.trainer
        params, ids = torch.ones_like(local.network.initial_params), np.arange(2)
        keys = Streams(0, simulated=True).at("shuffle", 1, ids)
        rows, _ = local.train(ids, {"params": params}, None, keys)
        assert rows.dtype == torch.float32
        moves.append(rows)
    steps = moves[0].abs().max() / 100
    assert 0 < steps < 2**-8 / 2
    assert 0 < (moves[1] - moves[0]).norm() < 0.1 * moves[0].norm()


def test_the_same_of_convolutions():
    full = built(Cnn(channels=[4, 8]), (1, 8, 8))
    x, y = torch.randn(6, 1, 8, 8), torch.randint(0, 3, (6,))
    moves = []
    for net in (full, replace(full, mixed=6)):
        flat = torch.ones_like(net.initial_params)
        leaves = net.leaves(flat)
        for _ in range(100):
            net.descend(leaves, x, y, 0.001)
        moves.append(flat - 1)
    assert 0 < moves[0].abs().max() / 100 < 2**-8 / 2
    assert 0 < (moves[1] - moves[0]).norm() < 0.1 * moves[0].norm()


def test_a_run_in_mixed_precision_says_so_and_ends_near_another_model(tmp_path):
    for precision in ("full", "mixed"):
        trained(tmp_path / precision, *ROWS, f"run.precision={precision}", "run.randomness=seeded")
    assert 'precision = "mixed"' in (tmp_path / "mixed/config.toml").read_text()
    full, mixed = (
        torch.cat([one.flatten() for name, one in model(tmp_path / end).items() if "model" in name])
        for end in ("full", "mixed")
    )
    assert 0 < (full - mixed).norm() < 0.05 * full.norm()


class Residual(nn.Module):
    """No sequence of layers, so that it is left to PyTorch what is rounded."""

    def __init__(self, features, width):
        super().__init__()
        self.inner, self.last = nn.Linear(features, features), nn.Linear(features, width)

    def forward(self, x):
        return self.last(x + self.inner(x).relu())


def residual(features, width):
    (count,) = features
    return Residual(count, width)


class Cancelling(nn.Module):
    """Adds a large number and takes it away again: three digits are not enough for it."""

    def __init__(self, features, width):
        super().__init__()
        self.first, self.second = nn.Linear(features, width), nn.Linear(width, width)

    def forward(self, x):
        first = self.first(x)
        return self.second(first + 3000.0) - self.second(torch.full_like(first, 3000.0))


def cancelling(features, width):
    (count,) = features
    return Cancelling(count, width)


def test_a_model_that_loses_too_much_is_refused():
    config = small(f"model.name={__name__}:cancelling", MIXED)
    with pytest.raises(Refused, match=r'of its norm.*use "full"'):
        prepare(config)


@pytest.mark.parametrize("precision", [MIXED, FAST])
def test_gradients_of_single_examples_stay_in_full_precision(precision):
    settings = ("client.privacy.mechanism=dp_sgd", "data.setting=cross_silo", precision)
    with pytest.raises(Refused, match="single examples in full precision"):
        plan(small(*settings, "client.privacy.noise_multiplier=1.0", "privacy.mechanism=none"))


def measured(monkeypatch, ratio):
    """Let mixed precision be so many times as fast here."""
    monkeypatch.setattr(assemble, "speedup", lambda *_: ratio)


def stated(run):
    return tomllib.loads((run / "config.toml").read_text())["run"]["precision"]


@every_case(
    ("ratio", "precision", "words"),
    [
        (2.0, "mixed", "in mixed precision, 2.00 x as fast here"),
        (1.05, "full", "in full precision: mixed is not faster here (1.05 x)"),
        (0.5, "full", "in full precision: mixed is not faster here (0.50 x)"),
    ],
)
def test_the_faster_is_used_recorded_and_said(tmp_path, monkeypatch, ratio, precision, words):
    measured(monkeypatch, ratio)
    setup = prepare(small(*ROWS, FAST))
    assert bool(setup.network.mixed) == (precision == "mixed")
    assert setup.executor.trainer.network.mixed == setup.network.mixed
    assert setup.plan.config.run.precision == precision
    assert words in training_row(setup)
    trained(tmp_path / "run", *ROWS, FAST)
    assert stated(tmp_path / "run") == precision


def training_row(setup):
    table = plan_table(setup.plan, forecast(setup), None)
    keys, values = (list(column.cells) for column in table.columns)
    return str(dict(zip(keys, values, strict=True))["local training"])


def test_precision_asked_for_by_name_is_not_measured(monkeypatch):
    monkeypatch.setattr(assemble, "speedup", lambda *_: pytest.fail("measured"))
    assert training_row(prepare(small(*ROWS, MIXED))).endswith("in mixed precision")
    thin = training_row(prepare(small("model.name=mlp", "model.hidden=[512]", MIXED)))
    assert thin.endswith("in mixed precision (without effect: batches are too small)")
    assert "precision" not in training_row(prepare(small(*ROWS)))


def test_a_model_that_loses_too_much_stays_in_full_precision_however_fast_the_other(monkeypatch):
    monkeypatch.setattr(assemble, "speedup", lambda *_: pytest.fail("measured"))
    setup = prepare(small(f"model.name={__name__}:cancelling", FAST))
    assert not setup.network.mixed
    assert setup.plan.config.run.precision == "full"
    assert "in full precision: mixed changes this model's gradient" in training_row(setup)


@pytest.mark.parametrize("ratio", [2.0, 0.5])
def test_a_resumed_run_measures_nothing_anew(tmp_path, monkeypatch, ratio):
    measured(monkeypatch, ratio)
    trained(tmp_path / "run", *ROWS, FAST)
    before = stated(tmp_path / "run")
    monkeypatch.setattr(assemble, "speedup", lambda *_: pytest.fail("measured"))
    wanted = small(*ROWS, FAST, "run.rounds=9")
    assert resume(tmp_path / "run", lambda _: wanted).updates == 9
    assert stated(tmp_path / "run") == before
    other = {"mixed": "full", "full": "mixed"}[before]
    with pytest.raises(Refused, match=r"run\.precision was"):
        resume(tmp_path / "run", lambda stored: stored.with_run(precision=other))


class Telling:
    """The first of two ranks, that notes what it tells the other."""

    rank, count = 0, 2

    def first(self, act):
        self.answer = act()
        return self.answer

    def on(self, device):
        return self


@pytest.mark.parametrize("ratio", [2.0, 0.5])
def test_other_ranks_train_in_the_precision_of_the_first(monkeypatch, ratio):
    measured(monkeypatch, ratio)
    setup, telling = prepare(small(*ROWS, FAST)), Telling()
    RankZero(telling).begin(setup)
    measured(monkeypatch, 1 / ratio)  # as busy as the other machine may be
    text, constants, _ = telling.answer
    there = prepare(read_resolved(text), constants=constants)
    assert there.network.mixed == setup.network.mixed == (40 if ratio > 1 else 0)


def test_the_comparison_trains_both_and_never_looks_at_the_population(monkeypatch):
    config, gathered_from = small(*ROWS, FAST), []
    dataset = prepare(small(*ROWS)).federation.examples.x
    real_gather, real_times = Federation.gather, assemble.speedup
    monkeypatch.setattr(
        Federation,
        "gather",
        lambda self, rows: (gathered_from.append(self), real_gather(self, rows))[1],
    )
    compared = []

    def noting(candidate, reference, *others):
        compared.append((bool(candidate.network.mixed), bool(reference.network.mixed)))
        return real_times(candidate, reference, *others)

    monkeypatch.setattr(assemble, "speedup", noting)
    prepare(config)
    assert compared == [(True, False)]
    assert gathered_from
    assert not any(torch.isin(federation.examples.x, dataset).any() for federation in gathered_from)


def test_a_seeded_run_depends_on_no_measurement_of_precision():
    with pytest.raises(Refused, match='must depend only on its run file; use "mixed" or "full"'):
        plan(small(FAST, "run.randomness=seeded"))


@pytest.mark.parametrize("way", ["stacked", "loop"])
def test_what_is_rounded_of_a_client_does_not_depend_on_whom_it_is_trained_with(way):
    """Batches are as wide as the largest client's: a client of 10 examples beside one of 64."""
    net = replace(built(Mlp(hidden=[16]), (5,)), mixed=64)
    local = trainer(population([10, 64, 3]), network=net, batch_size=64, way=way)
    params, rows = net.initial_params, []
    for ids in (np.array([0]), np.array([0, 1, 2])):
        keys = Streams(0, simulated=True).at("shuffle", 1, ids)
        rows.append(local.train(ids, {"params": params}, None, keys)[0][0])
    torch.testing.assert_close(rows[0], rows[1], rtol=1e-5, atol=1e-7)
