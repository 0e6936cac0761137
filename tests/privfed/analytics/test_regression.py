"""Without noise, odds ratios are the textbook's; with noise, intervals and tests hold."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from lanes import every_case
from scipy.stats import norm

from experiments.regression.coverage import DESIGNS, coefficients, result
from experiments.survival.coverage import noise
from privfed.analytics.regression.logistic import OutcomeCounts, logistic_regression

LEVELS = ("f", "m"), ("young", "middle", "old")
OCCURRED = np.array([[5.0, 12.0, 9.0], [7.0, 3.0, 20.0]])
OTHERS = np.array([[30.0, 25.0, 10.0], [18.0, 6.0, 14.0]])


@pytest.fixture
def exact():
    return OutcomeCounts(("sex", "age"), LEVELS, OCCURRED, OTHERS, 0.0)


def rows():
    """The design of the six cells: intercept, male, middle, old."""
    sex, age = (each.ravel() for each in np.indices((2, 3)))
    return np.stack([np.ones(6), sex == 1, age == 1, age == 2], 1).astype(float)


def newton(design, occurred, others):
    """Coefficients and covariance by a loop over cells, as a textbook states it."""
    beta = np.zeros(design.shape[1])
    for _ in range(30):
        score, information = np.zeros_like(beta), np.zeros((len(beta), len(beta)))
        for x, events, rest in zip(design, occurred, others, strict=True):
            p = 1 / (1 + math.exp(-float(x @ beta)))
            for y, count in ((1.0, events), (0.0, rest)):
                score += count * (y - p) * x
                information += count * p * (1 - p) * np.outer(x, x)
        beta += np.linalg.solve(information, score)
    return beta, np.linalg.inv(information)


def estimates(regression):
    return coefficients(regression)[0]


def test_estimates_are_the_textbooks(exact):
    beta, covariance = newton(rows(), OCCURRED.ravel(), OTHERS.ravel())
    regression = logistic_regression(exact)
    stated, errors = coefficients(regression)
    assert stated == pytest.approx(beta, abs=1e-9)
    assert errors == pytest.approx(np.sqrt(np.diag(covariance)), rel=1e-9)
    sex, age = regression.covariates
    reference, male = sex.levels
    assert (reference.ratio, reference.coefficient, reference.low) == (1.0, 0.0, None)
    assert male.ratio == pytest.approx(math.exp(beta[1]))
    margin = norm.isf(0.025) * errors[1]
    assert (male.low, male.high) == pytest.approx(np.exp([beta[1] - margin, beta[1] + margin]))
    assert male.p_value == pytest.approx(2 * norm.sf(abs(beta[1]) / errors[1]))
    assert male.p_value == pytest.approx(sex.p_value)  # one level: the same test
    wald = beta[2:] @ np.linalg.inv(covariance[2:, 2:]) @ beta[2:]
    assert (age.statistic, age.degrees) == (pytest.approx(wald), 2)


def test_estimates_are_those_of_statsmodels(exact):
    models = pytest.importorskip("statsmodels.api")
    table = np.stack([OCCURRED.ravel(), OTHERS.ravel()], 1)
    glm = models.GLM(table, rows(), models.families.Binomial()).fit(tol=1e-12)
    regression = logistic_regression(exact)
    stated, errors = coefficients(regression)
    assert np.abs(stated - glm.params).max() < 1e-6
    assert np.abs(errors - glm.bse).max() < 1e-6
    levels = [each for covariate in regression.covariates for each in covariate.levels[1:]]
    for each, limits, p in zip(levels, glm.conf_int()[1:], glm.pvalues[1:], strict=True):
        assert (each.low, each.high) == pytest.approx(np.exp(limits), rel=1e-6)
        assert each.p_value == pytest.approx(p, rel=1e-6)
    joint = glm.wald_test(np.eye(4)[2:], scalar=True)
    assert regression.covariates[1].p_value == pytest.approx(float(joint.pvalue), rel=1e-6)


def test_one_covariate_gives_the_odds_of_a_table():
    counts = OutcomeCounts(("arm",), (("a", "b"),), np.array([10, 30]), np.array([90, 60]), 0.0)
    (arm,) = logistic_regression(counts).covariates
    assert arm.levels[1].ratio == pytest.approx((30 * 90) / (10 * 60))
    error = math.sqrt(1 / 10 + 1 / 30 + 1 / 90 + 1 / 60)  # Woolf 1955
    assert arm.levels[1].standard_error == pytest.approx(error)
    first = arm.levels[0]
    assert (first.crude.clients, first.crude.occurred, first.crude.proportion) == (100.0, 10.0, 0.1)
    wilson = (0.05523, 0.17437)  # of 10 in 100
    assert (first.crude.low, first.crude.high) == pytest.approx(wilson, abs=1e-5)


def test_noise_widens_by_its_variance(exact):
    """With equal large counts, its share of the variance is 2 (p^2 + q^2) sigma^2 / n."""
    large = replace(exact, occurred=np.full((2, 3), 5e5), others=np.full((2, 3), 5e5))
    _, known = coefficients(logistic_regression(large))
    _, noised = coefficients(logistic_regression(replace(large, std=1e3)))
    share = 1e6 * 0.5 / (1e6 * 0.25)  # noise over sampling variance of a cell's score
    assert noised == pytest.approx(known * math.sqrt(1 + share))


def test_a_level_without_events_is_omitted_as_in_the_limit(exact):
    """Its coefficient is minus infinity, and the others are those without its clients."""
    occurred = OCCURRED.copy()
    occurred[:, 1] = 0.0
    regression = logistic_regression(replace(exact, occurred=occurred))
    kept = [0, 2, 3, 5]
    beta, _ = newton(rows()[kept][:, [0, 1, 3]], occurred.ravel()[kept], OTHERS.ravel()[kept])
    stated = estimates(regression)
    assert stated[[0, 1, 3]] == pytest.approx(beta)
    assert math.isnan(stated[2])
    assert regression.covariates[1].degrees == 1
    assert regression.covariates[1].levels[1].crude.proportion == 0.0


def test_without_a_visible_reference_a_covariate_has_no_estimate(exact):
    occurred = OCCURRED.copy()
    occurred[:, 0] = 0.0
    regression = logistic_regression(replace(exact, occurred=occurred))
    sex, age = regression.covariates
    assert regression.intercept is None
    assert {each.ratio for each in age.levels} == {None}
    assert (age.statistic, age.degrees, age.p_value) == (None, 0, None)
    assert sex.levels[1].ratio is not None


def test_separated_cells_have_no_estimate(exact):
    """Each level has clients of both kinds, but a line of levels separates them."""
    separated = replace(
        exact, occurred=np.array([[0, 0, 9], [0, 9, 9]]), others=np.array([[9, 9, 0], [9, 0, 0]])
    )
    regression = logistic_regression(separated)
    assert np.isnan(estimates(regression)).all()


def test_counts_within_their_noise_show_nothing(exact):
    regression = logistic_regression(replace(exact, std=60.0))
    assert np.isnan(estimates(regression)).all()
    for covariate in regression.covariates:
        assert covariate.p_value is None
        for level in covariate.levels:
            assert level.crude.high - level.crude.low > 0.9
    negative = replace(exact, occurred=-OCCURRED, others=-OTHERS, std=9.0)
    levels = logistic_regression(negative).covariates[0].levels
    assert [(each.crude.proportion, each.crude.low) for each in levels] == [(None, 0.0)] * 2


def test_estimates_are_a_function_of_the_table_and_are_written():
    counts = DESIGNS[0].sampled(500, 7.0, np.random.default_rng(0)).counts
    regression = logistic_regression(counts)
    assert regression == logistic_regression(counts)
    json.dumps(regression.to_json(), allow_nan=False)


@every_case(
    "wrong",
    [
        {"levels": (("f", "m"), ("young", "old"))},
        {"levels": (("f", "m"), ("young",))},
        {"covariates": ("sex",)},
        {"covariates": (), "levels": ()},
        {"std": -1.0},
    ],
)
def test_tables_of_another_shape_are_refused(exact, wrong):
    with pytest.raises(ValueError, match="must"):
        replace(exact, **wrong)


def test_intervals_cover_the_truth_and_would_not_without_the_noise():
    got = result(DESIGNS[0], 1_000, 0.5, 200, seed=1)
    assert got.ignoring_noise < 0.8
    assert got.least > 0.9
    assert 0.93 < got.mean < 0.98
    assert got.size < 0.09
    assert got.power > 0.5
    assert got.estimated == 1.0


def test_counts_below_zero_enter_the_score_as_they_are(exact):
    """Truncation would bias it: noise in nearly empty cells has mean 0 only without."""
    occurred = OCCURRED.copy()
    occurred[1, 1] = -3.0
    stated = estimates(logistic_regression(replace(exact, occurred=occurred)))
    beta, _ = newton(rows(), occurred.ravel(), OTHERS.ravel())
    assert stated == pytest.approx(beta)
    truncated = logistic_regression(replace(exact, occurred=np.maximum(occurred, 0.0)))
    assert np.abs(estimates(truncated) - beta).max() > 0.1


def test_the_bias_of_noise_is_corrected():
    """Means over noise and its negative, around the estimates of one table."""
    rng, std = np.random.default_rng(5), noise(0.5)
    known = DESIGNS[1].sampled(2_500, 0.0, rng).counts
    truth, corrected, raw = estimates(logistic_regression(known)), [], []
    for _ in range(200):
        drawn = std * rng.standard_normal((2, *known.occurred.shape))
        for added in (drawn, -drawn):
            noised = replace(
                known, occurred=known.occurred + added[0], others=known.others + added[1]
            )
            raw.append(estimates(logistic_regression(noised)))
            corrected.append(estimates(logistic_regression(replace(noised, std=std))))
    before, after = (np.mean(each, 0) - truth for each in (raw, corrected))
    assert before[0] < -0.015
    assert np.abs(after).max() < 0.006, (before, after)


@pytest.mark.slow
@pytest.mark.parametrize("clients", [1_000, 2_000, 10_000])
def test_coverage_is_nominal_at_every_epsilon(clients):
    """Within four standard errors of 500 repetitions, for the extremes of five coefficients."""
    for epsilon in (0.5, 1.0, 2.0):
        got = result(DESIGNS[0], clients, epsilon, 500, seed=int(10 * epsilon))
        assert got.least > 0.91
        assert 0.935 < got.mean < 0.97
        assert got.most < 0.985
        assert got.size < 0.075


@pytest.mark.slow
def test_a_rare_outcome_has_no_estimate_rather_than_a_wrong_one():
    got = result(DESIGNS[1], 1_000, 0.5, 500, seed=2)
    assert got.estimated < 0.9
    assert got.mean > 0.93
    assert result(DESIGNS[1], 2_000, 1.0, 500, seed=2).least > 0.91
