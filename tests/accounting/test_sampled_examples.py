"""Users whose examples are sampled one by one (ELS): the mixture over up to 1024 examples."""

import math

import numpy as np
import pytest
from scipy.special import log_ndtr
from scipy.stats import binom, norm

from accounting.accountants import epsilon
from accounting.bounds.pld import _grid
from accounting.bounds.rdp import _FEW, _curve
from accounting.bounds.several_sites import _Pair, at_several_sites, likely_divergences
from accounting.events import Event
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled, SeveralSites


def _row(at):
    return np.array([at])


ROUNDS, DELTA = 30, 1e-5


def spent(release, rounds=ROUNDS, delta=DELTA):
    return epsilon({Event(release, "poisson"): rounds}, delta, "pld")


def of_users(rate, examples, z):
    return spent(at_several_sites(rate, examples, Gaussian(z)))


def true_deltas(rate, examples, z, at):
    """Both hockey-stick divergences of the mixture and N(0, z^2), by numerical integration."""
    x = np.linspace(-12 * z, examples + 12 * z, 400_001)
    weights = binom.pmf(range(examples + 1), examples, rate)
    without = norm.pdf(x, 0, z)
    with_user = sum(weight * norm.pdf(x, j, z) for j, weight in enumerate(weights))
    return [
        np.trapezoid(np.maximum(first - math.exp(at) * second, 0.0), x)
        for first, second in ((with_user, without), (without, with_user))
    ]


@pytest.mark.parametrize(
    "rate, examples, z, at", [(0.1, 12, 1.0, 1.0), (0.02, 40, 0.7, 0.3), (0.5, 16, 4.0, 2.0)]
)
def test_the_divergences_are_those_of_integration(rate, examples, z, at):
    pair = _Pair(SeveralSites(rate, examples, Gaussian(z)))
    removed, added = true_deltas(rate, examples, z, at)
    assert pair.removed(_row(at))[0] == pytest.approx(removed, rel=1e-6)
    assert pair.added(_row(at))[0] == pytest.approx(added, rel=1e-6)


def test_one_example_is_poisson_sampling_of_users():
    assert of_users(0.05, 1, 1.1) == spent(PoissonSampled(0.05, Gaussian(1.1)))


def test_all_examples_in_each_step_are_group_privacy():
    together = spent(Gaussian(12.0 / 50))
    assert together <= of_users(1.0, 50, 12.0) <= 1.001 * together


def test_epsilon_grows_with_examples_and_rate():
    by_examples = [of_users(0.02, examples, 1.0) for examples in (1, 2, 8, 64)]
    assert by_examples == sorted(set(by_examples))
    by_rate = [of_users(rate, 20, 1.0) for rate in (0.001, 0.01, 0.1)]
    assert by_rate == sorted(set(by_rate))


def test_a_binomial_that_is_replaced_by_its_mean_claims_too_little():
    rate, examples, z = 0.05, 20, 1.0
    mean = Gaussian(z / (rate * examples))  # a user's expected number of rows in every step
    once = true_deltas(rate, examples, z, 3.0)[0]

    def covers(release):
        return spent(release, 1, once) >= 3.0 - 1e-6

    assert covers(SeveralSites(rate, examples, Gaussian(z)))
    assert not covers(mean)
    assert spent(mean) < 0.9 * of_users(rate, examples, z)


def test_counts_that_are_replaced_by_the_largest_never_lower_delta():
    release = SeveralSites(0.002, 500, Gaussian(1.0))
    pair = _Pair(release)
    assert pair.shifts[-1] == 500
    assert len(pair.shifts) < 40
    weights = binom.pmf(range(501), 500, 0.002)
    for at in (0.5, 3.0):
        x = pair._inverse(_row(at))[0]
        above = sum(w * norm.sf(x, j) for j, w in enumerate(weights))
        exact = above - math.exp(at + log_ndtr(-x))
        assert exact * (1 - 1e-12) <= pair.removed(_row(at))[0] <= exact * (1 + 1e-9) + 1e-20


def test_with_many_examples_the_grid_stays_fine():
    release = SeveralSites(5e-5, 1000, Gaussian(2.0))
    assert _grid({release: 1000}) < 2e-3
    few = SeveralSites(0.1, 2, Gaussian(1.5))
    likely, bound = likely_divergences(few, _FEW), _curve(few, _FEW)[1]
    assert (likely <= 1.001 * bound).all()
    assert spent(release, 1000) == pytest.approx(spent(PoissonSampled(0.05, Gaussian(2.0)), 1000),
                                                 rel=0.05)  # fmt: skip
