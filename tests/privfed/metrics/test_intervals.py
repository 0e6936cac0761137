"""Intervals cover, over 1,000 repetitions, whatever the noise and the draw of clients."""

import functools
import math
import warnings

import numpy as np
import pytest
import torch
from lanes import every_case, mostly_slow
from scorings import DIGITS, MEASURES, SCORINGS, population

from privfed.metrics.mean_measure import EVERY, Variances, ratio_interval, widest
from privfed.metrics.measure_row import MeasureRow

SETTINGS = [(500, 1.0, 5.4), (500, 0.1, 1.0), (5000, 0.05, 2.0)]
SCORED = {
    "binary": ("accuracy", "loss", "auc", "calibration"),
    "digits": ("accuracy", "recall_at_5"),
    "tags": ("recall_at_5",),
    "text": ("accuracy",),
    "number": ("mean_absolute_error",),
}
CASES = [(kind, name) for kind, names in SCORED.items() for name in names]
REPETITIONS = 1000


@functools.cache
def crowd(kind, clients):
    return population(kind, clients, seed=7, most=20)


def repeated(kind, names, clients, rate, std, claimed=None, repetitions=REPETITIONS):
    """Titles -> the true value, and estimates `[repetitions, 3]`: value, low, high."""
    row = MeasureRow.of([MEASURES[name] for name in names], SCORINGS[kind])
    rows = crowd(kind, clients).rows(row).numpy()
    true = row.estimates(torch.from_numpy(rows.sum(0)), 0.0, 1.0)[""]
    rng = np.random.default_rng(11)
    results = {title: [] for title in true}
    for _ in range(repetitions):
        drawn = rng.random(clients) < rate
        total = rows[drawn].sum(0) + rng.normal(0, std, rows.shape[1])
        noised = torch.from_numpy(total)
        estimates = row.estimates(noised, std if claimed is None else claimed, rate)[""]
        for title, each in estimates.items():
            results[title].append((each.value, each.low, each.high))
    return {title: (true[title].value, np.array(results[title])) for title in true}


def coverage(true, estimates):
    return ((estimates[:, 1] <= true) & (true <= estimates[:, 2])).mean()


def half_width(estimates):
    return (estimates[:, 2] - estimates[:, 1]).mean() / 2


@pytest.mark.parametrize("clients, rate, std", mostly_slow(SETTINGS, SETTINGS[1]))
@pytest.mark.parametrize("kind, name", CASES)
def test_an_interval_covers(kind, name, clients, rate, std):
    ((true, estimates),) = repeated(kind, (name,), clients, rate, std).values()
    assert coverage(true, estimates) >= 0.93
    ideal = 1.96 * estimates[:, 0].std()
    assert half_width(estimates) < 2.5 * ideal


@pytest.mark.slow
@pytest.mark.parametrize("clients, rate, std", SETTINGS)
def test_intervals_of_many_measures_cover(clients, rate, std):
    names = ("accuracy", "loss", "auc", "calibration")
    results = repeated("binary", names, clients, rate, std)
    assert min(coverage(*each) for each in results.values()) >= 0.93


@pytest.mark.parametrize("name", mostly_slow(["accuracy", "loss", "auc"], "accuracy"))
def test_less_noise_than_there_is_would_be_seen(name):
    ((true, estimates),) = repeated("binary", (name,), 500, 1.0, 5.4, claimed=2.7).values()
    assert coverage(true, estimates) < 0.8
    ((true, estimates),) = repeated("binary", (name,), 500, 1.0, 5.4, claimed=10.8).values()
    assert coverage(true, estimates) > 0.99


def test_a_draw_that_is_left_out_would_be_seen():
    """At little noise the draw of clients is most of what an interval is for."""
    row = MeasureRow.of([MEASURES["accuracy"]], SCORINGS["binary"])
    rows = crowd("binary", 500).rows(row).numpy()
    true = row.estimates(torch.from_numpy(rows.sum(0)), 0.0, 1.0)[""]["accuracy"].value
    rng, hits = np.random.default_rng(2), {0.1: 0, 1.0: 0}
    for _ in range(400):
        total = rows[rng.random(500) < 0.1].sum(0) + rng.normal(0, 0.2, rows.shape[1])
        for rate in hits:
            each = row.estimates(torch.from_numpy(total), 0.2, rate)[""]["accuracy"]
            hits[rate] += each.low <= true <= each.high
    assert hits[0.1] / 400 >= 0.93
    assert hits[1.0] / 400 < 0.6


def test_the_accuracy_of_500_clients_is_known_to_two_points():
    ((true, estimates),) = repeated("digits", ("accuracy",), 500, 1.0, 5.4).values()
    assert 0.7 < true < 0.97
    assert half_width(estimates) <= 0.02
    assert half_width(estimates) < 1.1 * 1.96 * estimates[:, 0].std()
    assert abs(estimates[:, 0].mean() - true) < 0.002


def test_a_row_of_accuracies_alone_has_the_worst_case_of_its_weights():
    """The deviation of an accuracy p is that of the noise over clients, times |(p, 1 - p)|."""
    row = MeasureRow.of([MEASURES["accuracy"]], DIGITS)
    assert row.weights.measure == pytest.approx(math.sqrt(0.5))
    assert row.weights.count == pytest.approx(math.sqrt(0.5))
    (_, estimates) = repeated("digits", ("accuracy",), 500, 1.0, 5.4)["accuracy"]
    p = estimates[:, 0].mean()
    assert estimates[:, 0].std() == pytest.approx(5.4 / 500 * math.hypot(p, 1 - p), rel=0.1)


@every_case("kind, name", CASES)
def test_without_clients_everything_is_possible(kind, name):
    row = MeasureRow.of([MEASURES[name]], SCORINGS[kind])
    rng = np.random.default_rng(0)
    low, high = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(50):
            noise = torch.from_numpy(rng.normal(0, 1, row.length))
            (each,) = row.estimates(noise, 1.0, 1.0)[""].values()
            assert math.isfinite(each.value)
            low, high = [*low, each.low], [*high, each.high]
    bounds = min(low), max(high)
    most = 100.0 if kind == "number" else 2 * math.log(2) if name == "loss" else 1.0
    assert bounds == pytest.approx((0.0, most))
    assert np.mean(np.isclose(low, 0) & np.isclose(high, most)) > 0.7


def test_confidence_widens():
    row = MeasureRow.of([MEASURES["accuracy"]], DIGITS)
    total = crowd("digits", 500).rows(row).sum(0)
    widths = []
    for confidence in (0.5, 0.95, 0.999):
        each = row.estimates(total, 5.4, 1.0, confidence)[""]["accuracy"]
        widths.append(each.high - each.low)
    assert widths == sorted(widths)
    assert widths[2] / widths[1] == pytest.approx(3.29 / 1.96, rel=0.05)


def test_a_group_has_less_noise_than_all_of_them():
    row = MeasureRow.of([MEASURES["accuracy"]], DIGITS, ("a", "b", "c", "d"))
    people_ = crowd("digits", 500)
    places = np.zeros(len(people_.y), dtype=np.int64)
    rows = row.of_clients(row.of_examples(people_.outputs, people_.y), people_.offsets, places)
    estimates = row.estimates(rows.sum(0), 5.4, 1.0)
    width = {name: each["accuracy"].high - each["accuracy"].low for name, each in estimates.items()}
    assert width[""] == pytest.approx(2 * width["a"], rel=0.02)
    assert width["b"] == 1.0  # nobody is there


def test_ratios():
    low, high = ratio_interval(8.0, 10.0, Variances(0.01, 0.01), 1.96)
    delta = 1.96 * 0.1 * math.hypot(1, 0.8) / 10
    assert (low, high) == pytest.approx((0.8 - delta, 0.8 + delta), rel=1e-3)
    assert ratio_interval(8.0, 1.0, Variances(1.0, 1.0), 1.96) == EVERY
    assert ratio_interval(8.0, -10.0, Variances(0.01, 0.01), 1.96) == EVERY
    assert ratio_interval(8.0, 10.0, Variances(-1.0, 0.0), 1.96) is None
    assert widest([None, (0.0, 1.0), (-1.0, 0.5)]) == (-1.0, 1.0)
    assert widest([None]) == EVERY
