"""Rates against brute force and scikit-learn, intervals against SciPy, bounds against the exact."""

import math

import numpy as np
import pytest
from lanes import every_case
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve

from attacks.privacy.roc import clopper_pearson, roc
from attacks.privacy.tradeoff import advantage_bound, at_distance_two, tpr_bound


def tied(seed, count=300):
    """Scores with many ties, that lean to the members."""
    rng = np.random.default_rng(seed)
    member = rng.random(count) < 0.4
    return np.round(rng.normal(member * 1.0, 1.0) * 3) / 3, member


@every_case("seed", range(5))
def test_roc_equals_sklearns_with_ties(seed):
    scores, member = tied(seed)
    points = roc(scores, member)
    fpr, tpr, _ = roc_curve(member, scores, drop_intermediate=False)
    np.testing.assert_allclose(points.fpr, fpr, atol=1e-12)
    np.testing.assert_allclose(points.tpr, tpr, atol=1e-12)
    assert points.auc == pytest.approx(roc_auc_score(member, scores), abs=1e-12)
    assert points.advantage == pytest.approx((tpr - fpr).max())


@every_case("rate", [0.0, 0.001, 0.01, 0.2, 0.999, 1.0])
def test_tpr_at_a_rate_is_the_best_threshold_of_all(rate):
    scores, member = tied(7)
    best = 0.0
    for threshold in [*np.unique(scores), np.inf]:
        taken = scores >= threshold
        if taken[~member].mean() <= rate:
            best = max(best, taken[member].mean())
    assert roc(scores, member).tpr_at(rate) == best


def test_a_constant_score_tells_nothing_and_has_no_thresholds_between():
    points = roc(np.zeros(9), np.arange(9) < 4)
    assert points.auc == 0.5
    assert points.advantage == 0.0
    assert points.tpr_at(0.99) == 0.0


def test_what_few_nonmembers_resolve():
    points = roc(np.arange(1004.0), np.arange(1004) < 4)
    assert points.resolves(0.001)
    assert not points.resolves(0.0009)
    assert not roc(np.arange(1003.0), np.arange(1003) < 4).resolves(0.001)


@pytest.mark.parametrize("scores", [[0.0, math.nan], [0.0]])
def test_roc_refuses_nan_and_an_empty_side(scores):
    with pytest.raises(ValueError, match="expected some of both"):
        roc(np.array(scores), np.arange(len(scores)) == 0)


@every_case("hits, trials", [(0, 10), (3, 10), (10, 10), (17, 4000)])
def test_clopper_pearson_equals_scipys(hits, trials):
    exact = stats.binomtest(hits, trials).proportion_ci(0.95, "exact")
    assert clopper_pearson(hits, trials) == pytest.approx((exact.low, exact.high), abs=1e-12)


@every_case("epsilon, delta", [(0.0, 0.0), (1.0, 0.0), (3.0, 0.01), (0.5, 0.2)])
def test_randomised_response_meets_the_bound_and_stays_below_it(epsilon, delta):
    """With δ the truth is told for sure; else kept with e^ε / (1 + e^ε): the ROC's own corners."""
    keep = (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
    lie = (1 - delta) / (1 + math.exp(epsilon))
    fpr, tpr = np.array([0.0, lie, lie + keep, 1.0]), np.array([delta, delta + keep, 1.0, 1.0])
    np.testing.assert_allclose(tpr_bound(fpr, epsilon, delta), tpr, atol=1e-12)
    between = np.linspace(0, 1, 101)
    exact = np.interp(between, fpr, tpr)
    np.testing.assert_allclose(tpr_bound(between, epsilon, delta), exact, atol=1e-12)
    assert advantage_bound(epsilon, delta) == pytest.approx((tpr - fpr).max())


@every_case("sensitivity", [0.5, 1.0, 2.0])
def test_the_gaussian_mechanism_touches_its_bound_and_never_crosses(sensitivity):
    """Its exact ROC is Φ(Φ^-1(FPR) + s); its exact δ at ε is Balle and Wang's (2018, theorem 8)."""
    fpr = np.linspace(0, 1, 4001)
    tpr = stats.norm.cdf(stats.norm.ppf(fpr) + sensitivity)
    for epsilon in (0.1, 1.0, 2.0):
        half, tilt = sensitivity / 2, epsilon / sensitivity
        delta = stats.norm.cdf(half - tilt) - math.exp(epsilon) * stats.norm.cdf(-half - tilt)
        gap = tpr_bound(fpr, epsilon, delta) - tpr
        assert gap.min() > -1e-9
        assert gap.min() < 1e-5
        two = at_distance_two(epsilon, delta)
        further = stats.norm.cdf(stats.norm.ppf(fpr) + 2 * sensitivity)
        assert (tpr_bound(fpr, *two) - further).min() > -1e-9


def test_no_epsilon_bounds_nothing():
    assert tpr_bound(np.array([0.0, 0.5]), math.inf, 1e-5).tolist() == [1.0, 1.0]
    assert advantage_bound(math.inf, 1e-5) == advantage_bound(5000.0, 0.0) == 1.0
    assert at_distance_two(math.inf, 1e-5) == (math.inf, 1e-5)
    assert at_distance_two(5000.0, 1e-5) == (10000.0, 1.0)
