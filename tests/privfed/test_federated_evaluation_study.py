"""The study of charged evaluation: its truth is the truth, its stops are the engine's, and its page
says what its table says."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from lanes import every_case

from experiments.federated_evaluation.cases import (
    ARMS,
    CASES,
    END,
    HERE,
    TENS,
    TENS_BY_LOSS,
    configured,
)
from experiments.federated_evaluation.scored import less_held_back, scored_rounds, truth
from experiments.federated_evaluation.stops import stopped
from experiments.federated_evaluation.study import read, written
from experiments.federated_evaluation.tables import runs, tables
from privfed.config.reading import load
from privfed.core.streams import Streams
from privfed.run.population import load_population
from privfed.run.prepare import prepare
from privfed.run.train import train

RESULTS = read(HERE / "results.csv")
SMALL = (
    "data.clients=60",
    "cohort.size=30",
    "evaluation.size=60",
    "evaluation.by=clients",
    "run.rounds=24",
    "run.evaluate_every=4",
    "privacy.delta=1e-3",
    "privacy.accountant=rdp",
    "run.chunk=30",
    "run.trainer=loop",
)


def small(*changes):
    return load(HERE / "run.toml", (*SMALL, *changes))


@pytest.fixture(scope="module")
def run():
    """A small run with charged evaluations."""
    return list(scored_rounds(small(), "small", TENS))


@pytest.mark.slow
def test_runs_stop_where_the_engine_stops_them(run, tmp_path):
    end = stopped(run, 1, "accuracy", charged=True)
    assert end.round < 24
    outcome = train(small("stop.patience=1"), tmp_path / "run")
    assert outcome.stopped_early
    assert outcome.charges == end.round
    assert outcome.accuracy == end.accuracy
    assert outcome.charged_measures["accuracy"].value == end.estimate
    assert outcome.guarantee.epsilon == pytest.approx(end.epsilon)


def test_the_truth_is_the_mean_over_clients_of_what_they_hold_back():
    setup = prepare(small())
    measures, params = setup.executor.measures, setup.initial_state().params
    params = params + torch.linspace(-1, 1, len(params))
    population = measures.federation
    right = (
        setup.network.outputs(params, population.examples.x).argmax(1) == population.examples.y
    ).numpy()
    means = [
        right[start:end].mean()
        for start, end in zip(population.offsets[:-1], population.offsets[1:], strict=True)
        if end > start
    ]
    assert 0 < np.mean(means) < 1
    assert truth(setup, 1, params)["accuracy"] == pytest.approx(np.mean(means))


def test_clients_who_hold_back_train_on_less_where_a_test_set_scores_too():
    config = load(HERE / "run.toml")
    streams = Streams(0, simulated=True)
    everything, less = load_population(config, streams), less_held_back(config, streams)
    by_clients = prepare(configured("digits", TENS, 0)).federation
    assert len(less.examples) < len(everything.examples)
    assert torch.equal(less.examples.y, by_clients.examples.y)
    assert torch.equal(less.test.y, everything.test.y)


def test_a_stop_is_never_by_what_was_not_charged(run):
    others = [replace(row, accuracy=1 - row.accuracy, truth=0.0) for row in run]
    stops = [stopped(each, 1, "accuracy", charged=True).round for each in (run, others)]
    assert stops[0] == stops[1]
    assert stopped(others, 1, "accuracy", charged=False).round != stops[0]


def test_what_is_written_is_read(tmp_path):
    (tmp_path / "results.csv").write_text(written(RESULTS), "utf-8")
    again = read(tmp_path / "results.csv")
    assert [row.cells() for row in again] == [row.cells() for row in RESULTS]
    assert math.isnan(again[0].truth)


def test_every_run_is_in_the_table():
    counted = Counter((row.case, row.arm) for row in RESULTS)
    for case in CASES:
        for name, arm in ARMS.items():
            assert counted[case, name] == arm.seeds * (12 if arm.stops else 1)


def gains(case, arm, by, patience):
    """Test accuracy where each run stops, less that at its end, in points."""
    of = runs(RESULTS, case, arm).values()
    ends = [stopped(run, patience, by, ARMS[arm].charged) for run in of]
    return [100 * (end.accuracy - run[-1].accuracy) for end, run in zip(ends, of, strict=True)]


@every_case(
    ("case", "arm"), [("digits", END), ("table", END), ("large table", END), ("large table", TENS)]
)
def test_charged_accuracy_is_within_two_points_in_95_of_100_runs(case, arm):
    rows = [row for row in RESULTS if (row.case, row.arm) == (case, arm)]
    assert np.mean([abs(row.estimate - row.truth) <= 0.02 for row in rows]) >= 0.95


@every_case("case", CASES)
def test_intervals_cover(case):
    rows = [row for row in RESULTS if row.case == case and not math.isnan(row.truth)]
    assert 0.93 <= np.mean([row.low <= row.truth <= row.high for row in rows]) <= 0.98
    halved = [abs(row.estimate - row.truth) <= (row.high - row.low) / 4 for row in rows]
    assert np.mean(halved) < 0.8


@every_case("case", ["digits", "table", "large table"])
def test_stopping_is_no_worse_than_none_where_it_cannot_help(case):
    for by, arm in (("accuracy", TENS), ("loss", TENS_BY_LOSS)):
        lost = gains(case, arm, by, 3)
        assert np.mean(lost) + 1.96 * np.std(lost, ddof=1) / math.sqrt(len(lost)) >= 0
        assert np.mean(lost) > -0.1


def test_the_page_shows_what_the_table_says():
    page = (HERE / "README.md").read_text("utf-8")
    for lines in tables(RESULTS).split("\n\n"):
        assert lines in page
