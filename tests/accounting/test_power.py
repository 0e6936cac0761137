"""The power that is told before a run is how often such a run is refuted."""

import numpy as np
import pytest

from accounting.empirical.one_run import Guesses, guess
from accounting.empirical.one_run_by_tradeoff import curve_p_value
from accounting.empirical.one_run_tests import PARTS, one_run_tests
from accounting.empirical.power import fewest_refuting, power, refuting_guesses
from accounting.empirical.tradeoff import ClaimedCurve, GaussianCurve
from accounting.empirical.verdicts import REFUTED_BELOW

CURVE = GaussianCurve(0.4)


@pytest.mark.parametrize("level", [0.05, REFUTED_BELOW])
def test_the_least_number_of_right_guesses_is_where_the_p_value_falls_below(level):
    refuting = refuting_guesses(200, CURVE, level, 2)
    assert {made for made, _ in refuting} <= {200 // part for part in PARTS}
    assert refuting
    for made, right in refuting:
        ps = [curve_p_value(Guesses(200, made, v), CURVE) for v in (right - 1, right)]
        assert ps[1] <= 1.001 * level / (2 * len(PARTS)) < ps[0]


def test_a_run_is_counted_as_refuted_where_its_tests_refute_it():
    rng, claims = np.random.default_rng(4), [(1.0, 1e-4)]
    refuting = refuting_guesses(100, ClaimedCurve(claims), 0.05, 2)
    verdicts = set()
    for mu in np.linspace(0.5, 2.5, 12):
        inclusion = rng.random(100) < 0.5
        scores = rng.normal(size=100) + mu * inclusion
        tests = one_run_tests({"a": scores, "b": scores}, inclusion, claims, 0.95)
        counted = any(guess(scores, inclusion, made).right >= right for made, right in refuting)
        assert counted == (tests.p_value <= 0.05)
        verdicts.add(counted)
    assert verdicts == {False, True}


def test_it_grows_with_what_is_wrong_and_is_nothing_where_nothing_is():
    refuting = refuting_guesses(300, CURVE, 0.05, 2)
    curves = [GaussianCurve(mu) for mu in (0.4, 0.8, 1.2, 6.0)]
    rates = [power(300, [refuting], curve, np.random.default_rng(0))[0] for curve in curves]
    assert rates == sorted(rates)
    assert rates[0] <= 0.05
    assert rates[-1] == 1.0
    both = power(300, [[], refuting], curves[1], np.random.default_rng(0))
    assert both == [0.0, rates[1]]


def test_the_fewest_canaries_are_those_whose_guesses_all_have_to_be_right():
    fewest = fewest_refuting(CURVE, REFUTED_BELOW, 2)
    assert fewest is not None
    assert refuting_guesses(fewest, CURVE, REFUTED_BELOW, 2)
    assert not refuting_guesses(int(0.9 * fewest), CURVE, REFUTED_BELOW, 2)
    scores = np.arange(fewest, dtype=float)
    inclusion = scores >= fewest // 2
    made = guess(scores, inclusion, fewest)
    assert curve_p_value(made, CURVE) < REFUTED_BELOW
    assert fewest_refuting(GaussianCurve(10.0), REFUTED_BELOW, 2) is None


def test_it_is_that_of_the_best_scores_of_canaries_between_which_the_curve_lies():
    """Gaussian scores, whose likelihood ratio grows with them; each share of 400 runs."""
    rng, refuting, mu = np.random.default_rng(3), refuting_guesses(300, CURVE, 0.05, 2), 0.9
    refuted = 0
    for _ in range(400):
        inclusion = rng.random(300) < 0.5
        scores = rng.normal(size=300) + mu * inclusion
        refuted += any(guess(scores, inclusion, made).right >= right for made, right in refuting)
    [share] = power(300, [refuting], GaussianCurve(mu), np.random.default_rng(0))
    assert 0.1 < share < 0.9
    assert share == pytest.approx(refuted / 400, abs=0.11)


def test_who_is_hardly_ever_drawn_is_hardly_ever_told_apart():
    """Without noise, epsilon is beyond all bounds, and nine of ten canaries took no part."""
    claimed = ClaimedCurve([(1.0, 0.0)])
    refuting = refuting_guesses(300, claimed, REFUTED_BELOW, 2)
    drawn_by_a_tenth = ClaimedCurve([(0.0, 0.1)])
    assert power(300, [refuting], drawn_by_a_tenth, np.random.default_rng(0)) == [0.0]
    assert power(300, [refuting], ClaimedCurve([(0.0, 1.0)]), np.random.default_rng(0)) == [1.0]
