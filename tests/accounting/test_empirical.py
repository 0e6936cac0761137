"""Estimates and bounds from samples: right where the truth is known, and honest about it."""

import math

import numpy as np
import pytest
from lanes import every_case
from scipy import stats
from scipy.optimize import brentq

from accounting.bounds.closed import gaussian_epsilon
from accounting.empirical.one_run import Guesses, guess
from accounting.empirical.one_shot import Bell, epsilon_between, estimate
from accounting.empirical.two_sample import judge
from accounting.errors import Unaccountable

DELTA = 1e-6


def noise_for(epsilon, delta=DELTA):
    return brentq(lambda z: gaussian_epsilon(z, delta) - epsilon, 0.05, 50)


def cosines(rng, noise, canaries, dimension):
    """Of canaries with one release of them all, and of others with the same: Andrew et al. 2024."""
    directions = rng.normal(size=(2 * canaries, dimension)).astype(np.float32)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    released = directions[:canaries].sum(0) + noise * rng.normal(size=dimension)
    found = directions @ (released / np.linalg.norm(released))
    return found[canaries:], found[:canaries]


@every_case("epsilon", [0.5, 1.0, 3.0, 10.0])
def test_between_two_gaussians_of_one_deviation_it_is_the_closed_form(epsilon):
    z = noise_for(epsilon)
    assert epsilon_between(Bell(0, 2.0), Bell(2.0 / z, 2.0), DELTA) == pytest.approx(epsilon, 1e-6)


@every_case("stds", [(1.0, 1.5), (1.5, 1.0), (0.2, 1.0)])
def test_between_gaussians_of_two_deviations_it_is_the_integral(stds):
    p, q = (Bell(at, sd) for at, sd in zip((0.0, 0.7), stds, strict=True))
    epsilon = epsilon_between(p, q, 1e-3)
    x = np.linspace(-30, 30, 2_000_001)
    one, other = (stats.norm.pdf(x, bell.mean, bell.std) for bell in (p, q))
    excess = [
        np.maximum(a - math.exp(epsilon) * b, 0).sum() * (x[1] - x[0])
        for a, b in ((one, other), (other, one))
    ]
    assert max(excess) == pytest.approx(1e-3, rel=1e-3)


def test_gaussians_that_never_vary():
    assert epsilon_between(Bell(1, 0.0), Bell(1, 0.0), DELTA) == 0
    assert epsilon_between(Bell(1, 0.0), Bell(2, 0.0), DELTA) == math.inf
    with pytest.raises(Unaccountable, match="number of samples is 1, but"):
        estimate(np.zeros(1), np.zeros(5), DELTA)


@pytest.mark.parametrize(
    ("epsilon", "low", "high"),
    [
        pytest.param(1.0, 0.90, 1.95, marks=pytest.mark.slow),
        (3.0, 2.96, 4.24),
        pytest.param(10.0, 9.92, 11.58, marks=pytest.mark.slow),
    ],
)
def test_estimates_fall_in_the_published_bands(epsilon, low, high):
    """Of 1,000 canaries in a Gaussian release, d = 4,000, by the known null N(0, 1/d)."""
    rng = np.random.default_rng(7)
    d, canaries, z = 4000, 1000, noise_for(epsilon)
    # The canaries' own sum is noise to each: counted, so that the truth is `epsilon` again.
    alone = math.sqrt(z**2 - min(canaries / d, 0.9 * z**2))
    found = [
        epsilon_between(Bell(0.0, d**-0.5), Bell.fitted(cosines(rng, alone, canaries, d)[1]), DELTA)
        for _ in range(3)
    ]
    assert low <= np.median(found) <= high


def test_with_half_the_noise_they_do_not():
    rng = np.random.default_rng(7)
    out, into = cosines(rng, noise_for(3.0) / 2, 1000, 4000)
    assert estimate(out, into, DELTA) > 5.0


def test_the_one_run_p_value_is_the_theorem():
    """Against its formula, spelled out."""
    m, r, v, epsilon, delta = 200, 60, 55, 1.3, 1e-4
    q = 1 / (1 + math.exp(-epsilon))
    law = stats.binom(r, q)
    beta = law.sf(v - 1)
    worst = max((law.cdf(v - 1) - law.cdf(v - i - 1)) / i for i in range(1, m + 1))
    assert Guesses(m, r, v).p_value(epsilon, delta) == pytest.approx(beta + 2 * m * delta * worst)


def test_one_run_bounds_exceed_the_truth_no_more_often_than_they_say():
    """Randomised response of e^eps : 1, guessed as well as can be: the bound's tightest case."""
    epsilon, rng = 1.0, np.random.default_rng(3)
    rate = 1 / (1 + math.exp(-epsilon))
    inclusion = rng.random((400, 300)) < 0.5
    told = np.where(rng.random(inclusion.shape) < rate, inclusion, ~inclusion)
    scores = told + 0.1 * rng.random(inclusion.shape)
    bounds = [
        guess(s, c, 100).epsilon_lower(0.0, 0.9) for s, c in zip(scores, inclusion, strict=True)
    ]
    assert np.mean(np.array(bounds) > epsilon) <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / 400)
    assert np.mean(bounds) > 0.3  # and they show something
    assert Guesses(2000, 2000, 2000).p_value(4.0, 1e-12) < 1e-6
    assert Guesses(2000, 100, 100).p_value(4.0, 1e-12) > 0.1


def test_guesses_are_about_the_ends():
    inclusion = np.array([True, True, False, False, True, False])
    scores = np.array([5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
    assert guess(scores, inclusion, 3) == Guesses(6, 3, 3)  # two in, one out
    assert guess(scores, inclusion, 6).right == 4
    with pytest.raises(Unaccountable, match="number of guesses is 7, but there are 6"):
        guess(scores, inclusion, 7)


SLOW = [pytest.param(epsilon, marks=pytest.mark.slow) for epsilon in (1.0, 10.0)]


@pytest.mark.parametrize("epsilon", [3.0, *SLOW])
def test_bounds_by_two_samples_exceed_the_truth_no_more_often_than_they_say(epsilon):
    rng, z = np.random.default_rng(1), noise_for(epsilon, 1e-3)
    claims = [(gaussian_epsilon(z, at), at) for at in (1e-3, 0.01, 0.1, 0.3)]
    found = [
        judge(rng.normal(size=300), rng.normal(1 / z, size=300), 1e-3, 0.9, claims)
        for _ in range(30)
    ]
    assert np.mean([one.epsilon_lower > epsilon for one in found]) <= 0.1
    assert min(one.p_value for one in found) > 1e-3
    assert epsilon < 2 or np.mean([one.epsilon_lower for one in found]) > 0.05


def test_where_there_is_nothing_to_find_a_bound_is_seldom_above_zero():
    """The best of many thresholds, counted on the scores it was chosen by, would often be."""
    rng = np.random.default_rng(2)
    found = [
        judge(rng.normal(size=400), rng.normal(size=400), 0.0, 0.9, [(0.0, 1e-3)])
        for _ in range(80)
    ]
    assert np.mean([one.epsilon_lower > 0 for one in found]) <= 0.1


@pytest.mark.parametrize("part", [0.5, 0.8])
def test_two_samples_refute_too_little_noise(part):
    rng = np.random.default_rng(1)
    claims = [(gaussian_epsilon(1.0, at), at) for at in (1e-3, 0.01, 0.1, 0.2, 0.3)]
    found = judge(rng.normal(size=6000), rng.normal(1 / part, size=6000), 1e-3, 0.95, claims)
    assert found.p_value < 1e-6


def test_two_samples_have_to_be_alike():
    with pytest.raises(Unaccountable, match="30 and 29 releases"):
        judge(np.zeros(30), np.zeros(29), 0.1, 0.95, [(1.0, 0.1)])
