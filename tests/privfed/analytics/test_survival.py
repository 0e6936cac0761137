"""Without noise, survival estimates are the textbook's; with noise, intervals and tests hold."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from lanes import every_case
from scipy.optimize import minimize
from scipy.stats import norm

from experiments.survival.coverage import (
    BINS,
    DESIGNS,
    RATIO,
    comparisons,
    covered,
    curves,
    noise,
    sampled,
)
from privfed.analytics.survival.curves import SurvivalCounts, survival_curves
from privfed.analytics.survival.tests import hazard_ratios, log_rank

EDGES = (0.0, 1.0, 2.0, 4.0, 5.0)
EVENTS = np.array([[4.0, 3.0, 0.0, 2.0], [1.0, 3.0, 2.0, 1.0], [6.0, 2.0, 3.0, 1.0]])
CENSORED = np.array([[1.0, 0.0, 2.0, 5.0], [0.0, 2.0, 3.0, 6.0], [2.0, 1.0, 0.0, 2.0]])


@pytest.fixture
def exact():
    return SurvivalCounts(EDGES, ("a", "b", "c"), EVENTS, CENSORED, 0.0)


def values(curve, name):
    return np.array([getattr(point, name).value for point in curve.points])


def ends(curve, name):
    return np.array([[getattr(p, name).low, getattr(p, name).high] for p in curve.points])


def times(counts, group):
    """The right edges of all patients' bins, and a mask of those with an event."""
    cells = np.concatenate([counts.events[group], counts.censored[group]]).astype(int)
    return np.repeat(np.tile(counts.edges[1:], 2), cells), np.repeat(
        [True, False], len(cells) // 2
    )[np.repeat(np.arange(len(cells)), cells)]


def test_curves_are_the_textbooks(exact):
    for group, curve in enumerate(survival_curves(exact)):
        survival, hazard, greenwood = 1.0, 0.0, 0.0
        n = EVENTS[group].sum() + CENSORED[group].sum()
        for point, events, censored in zip(
            curve.points, EVENTS[group], CENSORED[group], strict=True
        ):
            assert point.at_risk.value == point.at_risk.low == point.at_risk.high == n
            survival *= 1 - events / n
            hazard += events / n
            greenwood += events / (n * (n - events))
            margin = norm.isf(0.025) * math.sqrt(greenwood) / abs(math.log(survival))
            assert point.survival.value == pytest.approx(survival)
            assert point.survival.low == pytest.approx(survival ** math.exp(margin))
            assert point.survival.high == pytest.approx(survival ** math.exp(-margin))
            assert point.cumulative_hazard.value == pytest.approx(hazard)
            n -= events + censored


def test_mean_and_median_by_hand():
    counts = SurvivalCounts((0.0, 1.0, 3.0), ("all",), np.array([[2, 6]]), np.array([[0, 2]]), 0.0)
    (curve,) = survival_curves(counts)
    assert values(curve, "survival") == pytest.approx([0.8, 0.2])
    assert curve.restricted_mean.value == pytest.approx(0.9 + 2 * 0.5)
    assert curve.median.value == pytest.approx(1 + 2 * 0.5)
    (actuarial,) = survival_curves(replace(counts, censored=np.array([[2, 2]])), midpoint=True)
    assert values(actuarial, "survival") == pytest.approx([1 - 2 / 11, (1 - 2 / 11) * 0.25])


def test_all_or_no_events():
    counts = SurvivalCounts(
        (0.0, 1.0, 2.0),
        ("all", "none"),
        np.array([[4, 6], [0, 0]]),
        np.array([[0, 0], [0, 9]]),
        0.0,
    )
    dead, alive = survival_curves(counts)
    assert values(dead, "survival") == pytest.approx([0.6, 0.0])
    assert dead.points[1].survival.low == 0.0 < dead.points[1].survival.high
    assert values(alive, "survival").tolist() == [1.0, 1.0]
    assert alive.median.value is None
    assert 0.6 < alive.points[1].survival.low < 0.7  # 0.65 by Wilson (1927): exp(-3.84 / 9)


def test_log_rank_is_the_textbooks(exact):
    score, variance = np.zeros(3), np.zeros((3, 3))
    at_risk = np.cumsum((EVENTS + CENSORED)[:, ::-1], axis=1)[:, ::-1]
    for n, events in zip(at_risk.T, EVENTS.T, strict=True):
        share, d = n / n.sum(), events.sum()
        score += events - d * share
        hypergeometric = d * (n.sum() - d) / (n.sum() - 1)
        variance += hypergeometric * (np.diag(share) - np.outer(share, share))
    test = log_rank(exact)
    assert test.statistic == pytest.approx(score[1:] @ np.linalg.inv(variance[1:, 1:]) @ score[1:])
    assert test.degrees == 2


def test_hazard_ratios_have_the_largest_likelihood(exact):
    bins = np.triu(np.ones((4, 4)))
    exposures = (EVENTS + CENSORED) @ bins.T - EVENTS / 2
    exposures[:, :3] -= CENSORED[:, :3] / 2

    def loss(parameters):
        rates = np.exp(np.append(0.0, parameters[:2])[:, None] + parameters[2:]) * exposures
        return rates.sum() - (EVENTS * np.log(rates)).sum()

    best = minimize(loss, np.full(6, -1.0), method="BFGS", options={"gtol": 1e-9}).x[:2]
    ratios = hazard_ratios(exact, "a")
    assert [each.ratio for each in ratios] == pytest.approx(np.exp(best), rel=1e-4)
    (back, _) = hazard_ratios(exact, "b")
    assert (back.group, back.reference) == ("a", "b")
    assert back.low == pytest.approx(1 / ratios[0].high)


@pytest.mark.filterwarnings("ignore")
def test_results_are_those_of_lifelines_and_statsmodels(exact):
    lifelines = pytest.importorskip("lifelines")
    from lifelines.statistics import multivariate_logrank_test

    observed = [times(exact, group) for group in range(3)]
    for (time, event), curve in zip(observed, survival_curves(exact), strict=True):
        fitted = lifelines.KaplanMeierFitter().fit(time, event)
        at = fitted.survival_function_at_times(exact.edges[1:])
        assert np.abs(values(curve, "survival") - at).max() < 1e-6
        limits = fitted.confidence_interval_.loc[list(exact.edges[1:])]
        assert np.abs(ends(curve, "survival") - limits).max().max() < 1e-6
        hazard = lifelines.NelsonAalenFitter(nelson_aalen_smoothing=False).fit(time, event)
        sums = hazard.cumulative_hazard_at_times(exact.edges[1:])
        assert np.abs(values(curve, "cumulative_hazard") - sums).max() < 1e-6
        limits = hazard.confidence_interval_.loc[list(exact.edges[1:])]
        assert np.abs(ends(curve, "cumulative_hazard") - limits).max().max() < 1e-6
    sizes = [len(time) for time, _ in observed]
    test = multivariate_logrank_test(
        np.concatenate([time for time, _ in observed]),
        np.repeat(np.arange(3), sizes),
        np.concatenate([event for _, event in observed]),
    )
    assert log_rank(exact).statistic == pytest.approx(test.test_statistic, rel=1e-6)
    assert log_rank(exact).p_value == pytest.approx(test.p_value, rel=1e-6)
    models = pytest.importorskip("statsmodels.api")
    exposures = (EVENTS + CENSORED) @ np.triu(np.ones((4, 4))).T - EVENTS / 2
    exposures[:, :3] -= CENSORED[:, :3] / 2
    design = np.concatenate(
        [np.kron(np.eye(3)[:, 1:], np.ones((4, 1))), np.tile(np.eye(4), (3, 1))], 1
    )
    poisson = models.GLM(
        EVENTS.ravel(), design, models.families.Poisson(), exposure=exposures.ravel()
    ).fit()
    for place, ratio in enumerate(hazard_ratios(exact, "a")):
        assert ratio.ratio == pytest.approx(math.exp(poisson.params[place]), rel=1e-6)
        assert ratio.high == pytest.approx(math.exp(poisson.conf_int()[place][1]), rel=1e-6)
        assert ratio.p_value == pytest.approx(poisson.pvalues[place], rel=1e-5)


def test_noise_has_the_stated_epsilon():
    assert [noise(epsilon) for epsilon in (0.5, 1.0, 2.0)] == pytest.approx(
        [7.03, 3.73, 1.99], 1e-2
    )


def test_curves_are_a_function_of_the_table_and_are_written():
    counts = sampled(DESIGNS[0], (1.0, 2.0), 500, 7.0, np.random.default_rng(0))
    assert survival_curves(counts) == survival_curves(counts)
    for curve in survival_curves(counts):
        json.dumps(curve.to_json(), allow_nan=False)
        assert (np.diff(values(curve, "survival")) <= 1e-12).all()
        pointwise, band = ends(curve, "survival"), ends(curve, "band")
        assert (band[:, 0] <= pointwise[:, 0]).all()
        assert (pointwise[:, 0] <= values(curve, "survival")).all()
        assert (values(curve, "survival") <= pointwise[:, 1]).all()
        assert (pointwise[:, 1] <= band[:, 1]).all()
    json.dumps(log_rank(counts).to_json(), allow_nan=False)
    json.dumps([each.to_json() for each in hazard_ratios(counts, counts.groups[0])])


def test_counts_within_their_noise_show_nothing():
    counts = SurvivalCounts(EDGES, ("a", "b", "c"), EVENTS, CENSORED, 30.0)
    for curve in survival_curves(counts):
        assert not any(point.visible for point in curve.points)
        assert ends(curve, "survival").tolist() == [[0.0, 1.0]] * 4
        assert (curve.restricted_mean.low, curve.restricted_mean.high) == (0.5, 5.0)
        assert curve.points[0].cumulative_hazard.high is None
    assert log_rank(counts).p_value == 1.0
    assert {each.ratio for each in hazard_ratios(counts, "a")} == {None}


@every_case(
    "wrong",
    [
        {"edges": (0.0, 1.0)},
        {"edges": (0.0, 2.0, 1.0, 4.0, 5.0)},
        {"std": -1.0},
        {"groups": ("a",)},
    ],
)
def test_tables_of_another_shape_are_refused(exact, wrong):
    with pytest.raises(ValueError, match="must"):
        replace(exact, **wrong)


def test_comparisons_need_two_groups_and_a_known_reference(exact):
    single = SurvivalCounts(EDGES, ("a",), EVENTS[:1], CENSORED[:1], 0.0)
    for compare in (log_rank, lambda counts: hazard_ratios(counts, "a")):
        with pytest.raises(ValueError, match="two groups"):
            compare(single)
    with pytest.raises(ValueError, match="not in"):
        hazard_ratios(exact, "d")


def test_intervals_cover_the_truth_and_would_not_without_the_noise():
    got = curves(DESIGNS[0], 1_000, noise(0.5), 120, np.random.default_rng(1))
    assert got["ignoring_noise"] < 0.8
    assert got["least"] > 0.88
    assert 0.92 < got["mean"] < 0.985
    assert min(got["band"], got["restricted_mean"], got["median"], got["exact_times"]) > 0.88


def test_tests_account_for_the_noise():
    rng, std = np.random.default_rng(2), noise(0.5)
    got = comparisons(DESIGNS[0], 1_000, std, 300, rng)
    assert got["log_rank_size"] < 0.09
    assert got["log_rank_power"] > 0.5
    assert got["ratio_coverage"] > 0.91
    tables = [sampled(DESIGNS[0], (1.0, 1.0), 1_000, std, rng) for _ in range(200)]
    ignoring = [replace(counts, std=0.0) for counts in tables]
    assert np.mean([log_rank(counts).p_value < 0.05 for counts in ignoring]) > 0.2
    assert (
        np.mean([hazard_ratios(counts, counts.groups[0])[0].p_value < 0.05 for counts in ignoring])
        > 0.2
    )


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS, ids=lambda design: design.name)
@pytest.mark.parametrize("patients", [1_000, 2_000])
def test_coverage_is_nominal_at_every_epsilon(design, patients):
    """Within four standard errors of 250 repetitions, for the extreme of 20 bins."""
    for epsilon in (0.5, 1.0, 2.0):
        rng = np.random.default_rng(int(10 * epsilon))
        got = curves(design, patients, noise(epsilon), 250, rng)
        assert got["least"] > 0.895
        assert 0.93 < got["mean"] < 0.975
        assert min(got["band"], got["restricted_mean"], got["median"]) > 0.91
        both = comparisons(design, patients, noise(epsilon), 1_000, rng)
        assert both["log_rank_size"] < 0.075
        assert 0.92 < both["ratio_coverage"] < 0.98
        if (patients, epsilon) == (2_000, 1.0):
            assert got["error"] < 0.04


@pytest.mark.slow
def test_rare_events_and_three_groups():
    """With about one event per bin, and with a third group."""
    rng, rows, rejected = np.random.default_rng(4), [], []
    rare = replace(DESIGNS[0], name="rare")
    cells = rare.cells(0.02)
    at_risk = np.cumsum((cells[:BINS] + cells[BINS:])[::-1])[::-1]
    truth = np.cumprod(1 - cells[:BINS] / at_risk)
    for _ in range(500):
        (curve,) = survival_curves(sampled(rare, (0.02,), 2_000, noise(1.0), rng))
        rows.append(covered([point.survival for point in curve.points], truth))
        three = sampled(DESIGNS[1], (RATIO,) * 3, 3_000, noise(1.0), rng)
        rejected.append(log_rank(three).p_value < 0.05)
    assert (np.mean(rows, axis=0) > 0.92).all()
    assert np.mean(rejected) < 0.08
