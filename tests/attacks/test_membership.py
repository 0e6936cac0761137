"""LiRA where the truth is known: Gaussians, each target with means of its own."""

import math

import numpy as np
import pytest
from scipy import stats

from attacks.privacy.membership import (
    OWN_VARIANCE,
    Shadows,
    confidence,
    leave_one_out,
    lira,
    lira_offline,
)
from attacks.privacy.roc import roc

APART = 2.0


def gaussians(models, targets, seed=0, spread=5.0):
    """Statistics N(μ_t + APART·in, 1): where a target lies says nothing, its moves do."""
    rng = np.random.default_rng(seed)
    inside = rng.random((models, targets)) < 0.5
    where = rng.normal(0, spread, targets)
    return Shadows(where + APART * inside + rng.normal(size=inside.shape), inside)


def curve(rule, runs):
    return roc(leave_one_out(rule, runs).ravel(), runs.inside.ravel())


def test_lira_reaches_the_best_rate_there_is_and_a_threshold_does_not():
    """The likelihood ratio of N(APART, 1) to N(0, 1) has TPR = Φ(Φ^-1(FPR) + APART)."""
    runs = gaussians(3 * OWN_VARIANCE, 150)
    best = stats.norm.cdf(stats.norm.ppf(0.01) + APART)
    plain = roc(runs.statistics.ravel(), runs.inside.ravel())
    for rule in (lira, lira_offline):
        points = curve(rule, runs)
        assert points.tpr_at(0.01) == pytest.approx(best, abs=0.05), rule
        assert points.auc == pytest.approx(stats.norm.cdf(APART / math.sqrt(2)), abs=0.02)
    assert plain.tpr_at(0.01) < best / 4


def test_few_shadows_share_one_variance_and_still_beat_a_threshold():
    runs = gaussians(9, 800)
    points = curve(lira, runs)
    assert points.auc > 0.88
    assert points.auc > roc(runs.statistics.ravel(), runs.inside.ravel()).auc + 0.2


def test_nothing_is_found_where_nothing_is():
    """A target's coins are independent, so the other runs do not give this one away."""
    rng = np.random.default_rng(3)
    inside = rng.random((9, 2000)) < 0.5
    runs = Shadows(rng.normal(size=inside.shape) + rng.normal(0, 5, 2000), inside)
    for rule in (lira, lira_offline):
        assert curve(rule, runs).auc == pytest.approx(0.5, abs=0.015)


def test_scores_by_hand():
    """In: 4, 6; out: 0, 2; pooled variances 2 and 2. Of the target's 5: -0 + (5 - 1)^2 / 4 = 4."""
    inside = np.array([[True], [True], [False], [False]])
    shadows = Shadows(np.array([[4.0], [6.0], [0.0], [2.0]]), inside)
    assert lira(np.array([5.0]), shadows) == pytest.approx([4.0])
    assert lira_offline(np.array([5.0]), shadows) == pytest.approx([4 / math.sqrt(2)])


def test_a_target_that_is_never_left_out_is_no_evidence():
    runs = gaussians(6, 50)
    runs.inside[:, 0] = True
    for rule in (lira, lira_offline):
        scores = rule(runs.statistics[0], runs)
        assert scores[0] == 0.0
        assert np.isfinite(scores).all()


def test_the_attacked_run_is_none_of_its_own_shadows():
    runs = gaussians(5, 20)
    before = leave_one_out(lira, runs)
    runs.inside[2] = ~runs.inside[2]
    np.testing.assert_array_equal(leave_one_out(lira, runs)[2], before[2])


def test_confidence_is_the_logit_and_stays_finite():
    p = np.array([0.001, 0.3, 0.5, 0.99])
    np.testing.assert_allclose(confidence(-np.log(p)), np.log(p / (1 - p)), atol=1e-12)
    extreme = confidence(np.array([0.0, 1e-30, 1e-12, 700.0, 1e6]))
    assert np.isfinite(extreme).all()
    assert (np.diff(extreme) <= 0).all()
