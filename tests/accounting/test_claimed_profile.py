"""What one run is held against: a profile, and the probability of what slack stands for."""

import math

import pytest

from accounting.empirical.claimed_profile import claimed_profile, refutable_claims
from accounting.empirical.one_run import Guesses
from accounting.empirical.one_run_by_tradeoff import curve_p_value
from accounting.empirical.power import fewest_refuting
from accounting.empirical.tradeoff import ClaimedCurve
from accounting.events import Event
from accounting.guarantee import guarantee
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled

DELTA = 1e-5


def spending(slack, rounds=20):
    return {Event(PoissonSampled(0.2, Gaussian(2.0)), "poisson", slack=slack): rounds}


def test_without_slack_it_is_the_ledgers_own_profile():
    assert refutable_claims(spending(0.0), DELTA) == ([*claimed_profile(spending(0.0), DELTA)], 0.0)


def test_slack_is_added_once_for_all_canaries_together():
    """In the delta of each of 200 canaries it would leave nothing to refute."""
    charged = spending(1e-10)
    claims, slack = refutable_claims(charged, DELTA)
    assert slack == pytest.approx(2e-9)
    assert claims[0] == (guarantee(charged, DELTA).epsilon, DELTA)
    assert claims[1:] == [*claimed_profile(spending(0.0), DELTA)]
    all_right = Guesses(200, 200, 200)
    together = curve_p_value(all_right, ClaimedCurve(claims)) + slack
    each = curve_p_value(all_right, ClaimedCurve([*claimed_profile(charged, DELTA)]))
    assert together < each / 5
    exact = curve_p_value(all_right, ClaimedCurve([*claimed_profile(spending(0.0), DELTA)]))
    assert together >= exact


def test_where_nothing_finite_is_claimed_nothing_is_tested():
    charged = spending(1e-5)
    assert guarantee(charged, DELTA).epsilon == math.inf
    assert refutable_claims(charged, DELTA) == ([], 1.0)


def test_no_number_of_canaries_refutes_at_no_level():
    assert fewest_refuting(ClaimedCurve([(0.5, 1e-6)]), 0.0, 1) is None
