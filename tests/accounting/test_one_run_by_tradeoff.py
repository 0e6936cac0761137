"""Tests of a whole trade-off curve from one run: exact where the worst case is known, and valid."""

import functools
import math

import numpy as np
import pytest
from lanes import every_case
from scipy import optimize, stats

from accounting.bounds.closed import gaussian_epsilon
from accounting.empirical.claimed_profile import claimed_profile
from accounting.empirical.one_run import Guesses, guess
from accounting.empirical.one_run_by_tradeoff import curve_p_value, gaussian_lower
from accounting.empirical.one_run_tests import PARTS, one_run_tests
from accounting.empirical.tradeoff import ClaimedCurve, GaussianCurve
from accounting.events import Event
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled

DELTA = 1e-5
SIZES = (1, 2, 7, 40, 100)


def pure(epsilon):
    return ClaimedCurve([(epsilon, 0.0)]), 1 / (1 + math.exp(-epsilon))


def gaussian(mu):
    return GaussianCurve(mu), stats.norm.cdf(mu / 2)


def canaries(rng, mu, count):
    """Scores and coins of independent canaries, between which and none is a Gaussian curve."""
    inclusion = rng.random(count) < 0.5
    return rng.normal(size=count) + mu * inclusion, inclusion


@every_case("size", SIZES)
@every_case(
    ("law", "parameter"),
    [
        (pure, 0.0),
        (pure, 0.1),
        (pure, 1.0),
        (pure, 3.0),
        (gaussian, 0.3),
        (gaussian, 1.0),
        (gaussian, 3.0),
    ],
)
def test_a_p_value_is_no_less_than_the_probability_of_independent_guesses(law, parameter, size):
    """Each coin is guessed by itself as well as its curve allows, by a mechanism that has it."""
    curve, rate = law(parameter)
    right = np.arange(1, size + 1)
    bounds = [curve_p_value(Guesses(size, size, int(v)), curve) for v in right]
    assert np.all(bounds >= stats.binom.sf(right - 1, size, rate) * (1 - 1e-6))
    if law is pure:
        assert bounds[-1] <= 1.01 * rate**size  # the worst case, where all are right


@pytest.mark.parametrize("delta", [0.01, 0.2])
def test_a_run_that_now_and_then_tells_all_is_not_refuted(delta):
    """All coins are shown with probability delta, and nothing else is: (0, delta)-private."""
    for size in SIZES:
        truth = delta + (1 - delta) * 0.5**size
        p_value = curve_p_value(Guesses(size, size, size), ClaimedCurve([(0.0, delta)]))
        assert p_value >= truth * (1 - 1e-6)


@every_case(("epsilon", "mean"), [(2.0, 0.82), (4.0, 2.09), (8.0, 4.4)])
def test_bounds_reach_what_is_known_of_ideal_canaries(epsilon, mean):
    """500 of them, of which the best part on average is guessed; and the bound for any curve."""
    rng, mu = np.random.default_rng(5), GaussianCurve.of((epsilon, DELTA)).mu
    any_curve = functools.cache(lambda made: made.epsilon_lower(DELTA, 0.95))
    if_gaussian = functools.cache(lambda made: gaussian_lower(made, 0.95).epsilon(DELTA))
    drawn = [canaries(rng, mu, 500) for _ in range(150)]
    guesses = [[guess(*each, made) for each in drawn] for made in (50, 100, 250)]
    by_gaussian, by_any = (
        max(np.mean([bound(each) for each in part]) for part in guesses)
        for bound in (if_gaussian, any_curve)
    )
    assert by_gaussian == pytest.approx(mean, abs=0.12)
    assert by_gaussian > 1.3 * by_any


@every_case("mu", [0.5, 1.0, 2.0])
def test_the_truth_is_seldom_refuted(mu):
    """The best of a fixed list of guesses exceeds it in at most 5 % of 1,000 runs."""
    rng, curve, count = np.random.default_rng(11), GaussianCurve(mu), 120
    p_value = functools.cache(curve_p_value)
    above = 0
    for _ in range(1000):
        scores, inclusion = canaries(rng, mu, count)
        ps = [p_value(guess(scores, inclusion, count // part), curve) for part in PARTS]
        above += min(ps) < 0.05 / len(PARTS)
    assert above <= 50


def worst_case(guesses, claims):
    """The largest probability of as many right guesses in any run with these `claims`, exactly.

    By symmetry, a worst run chooses coins to guess at random, and makes patterns of right and wrong
    guesses with probabilities that depend on the number of right ones alone. What neighbours differ
    by beyond a claim is piecewise linear in these, so a linear program maximises over all runs.
    """
    m, k, v = guesses.canaries, guesses.made, guesses.right
    j = np.arange(k)
    others = np.array([math.comb(k - 1, n) for n in range(k)], dtype=float)
    wrong, right = (others / [math.comb(k, n + more) for n in range(k)] for more in (0, 1))
    columns, rows, limits = k + 1 + 2 * k * len(claims), [], []
    for number, (epsilon, delta) in enumerate(claims):
        slack = k + 1 + 2 * k * number + np.arange(2 * k).reshape(2, k)
        for side in (0, 1):
            factors = np.roll([1.0, -math.exp(epsilon)], side)
            beyond = np.zeros((k, columns))
            beyond[j, j + 1], beyond[j, j] = factors[0] * right, factors[1] * wrong
            beyond[j, slack[side]] = -1.0
            rows += list(beyond)
            limits += [0.0] * k
        rows.append(np.zeros(columns))
        rows[-1][slack] = 1.0
        limits.append(delta * m / k)
    sought, all_of_it = np.zeros(columns), np.zeros((1, columns))
    sought[v : k + 1], all_of_it[0, : k + 1] = -1.0, 1.0
    solved = optimize.linprog(sought, np.array(rows), limits, all_of_it, [1.0])
    assert solved.success
    return -solved.fun


@every_case(
    "claims",
    [
        [(1.0, 0.0)],
        [(0.0, 0.5)],
        [(0.3, 0.01), (0.1, 0.2), (2.0, 1e-4)],
        [(gaussian_epsilon(1.0, delta), delta) for delta in (1e-4, 0.01, 0.1, 0.3)],
    ],
    ids=["pure", "mixed", "points", "Gaussian"],
)
@every_case(("inclusion", "made"), [(1, 1), (3, 2), (6, 6), (20, 4), (12, 12)])
def test_no_run_has_as_many_right_guesses_more_often(claims, inclusion, made):
    """Whatever its guesses do to each other. It is tight: a smaller one would not hold."""
    for right in range(1, made + 1):
        guesses = Guesses(inclusion, made, right)
        bound, worst = curve_p_value(guesses, ClaimedCurve(claims)), worst_case(guesses, claims)
        assert bound >= worst * (1 - 1e-5)
        assert bound / 2 < worst


def test_a_list_of_guesses_is_paid_for():
    """The smallest p-value of several counts as often as there were tests."""
    scores, inclusion = canaries(np.random.default_rng(2), 3.0, 200)
    claims = [(1.0, DELTA)]
    curve = ClaimedCurve(claims)
    tests = one_run_tests({"first": scores, "again": scores}, inclusion, claims, 0.95)
    singles = [guess(scores, inclusion, 200 // part) for part in PARTS]
    smallest = min(curve_p_value(made, curve) for made in singles)
    assert tests.p_value == pytest.approx(2 * len(PARTS) * smallest)
    best = max(made.epsilon_lower(DELTA, 1 - 0.05 / len(PARTS)) for made in singles)
    assert tests.bounds["first"].any_curve == best <= tests.most.any_curve
    assert tests.bounds["again"].if_gaussian <= tests.most.if_gaussian


def test_a_claimed_curve_is_the_gaussian_that_it_is_made_of():
    mu, x = 1.3, np.linspace(0, 1, 201)
    deltas = np.geomspace(1e-8, 0.9, 200)
    points = [(gaussian_epsilon(1 / mu, delta), delta) for delta in deltas]
    claimed, true = ClaimedCurve(points).reflected(x), GaussianCurve(mu).reflected(x)
    assert np.all(claimed <= true + 1e-9)
    assert np.abs(claimed - true).max() < 2e-3


def test_the_family_is_found_by_its_epsilon():
    assert GaussianCurve.of((3.0, DELTA)).epsilon(DELTA) == pytest.approx(3.0)
    assert GaussianCurve.of((1e9, DELTA)).mu == GaussianCurve.of((1e8, DELTA)).mu
    assert GaussianCurve(0.0).epsilon(DELTA) == 0.0
    assert gaussian_lower(Guesses(100, 10, 4), 0.95) == GaussianCurve(0.0)


def test_a_ledgers_profile_refutes_half_of_its_noise_where_one_point_does_not():
    """The same guesses, against all that is claimed and against epsilon at the ledger's delta."""
    spending = {Event(PoissonSampled(0.2, Gaussian(2.0)), "poisson"): 50}
    claims = list(claimed_profile(spending, DELTA))
    assert claims[0][1] == DELTA
    assert all(0 <= epsilon < math.inf for epsilon, _ in claims)
    broken = GaussianCurve.of((6 * claims[0][0], DELTA)).mu
    made = guess(*canaries(np.random.default_rng(0), broken, 2000), 1000)
    profile = curve_p_value(made, ClaimedCurve(claims))
    assert profile < 1e-6
    assert made.p_value(*claims[0]) > 100 * profile
    assert curve_p_value(made, ClaimedCurve(claims[:1])) > 100 * profile


def test_what_is_held_against_a_run_is_what_its_ledgers_accountant_claims():
    spending = {Event(PoissonSampled(0.2, Gaussian(2.0)), "poisson"): 50}
    rdp, pld = (next(claimed_profile(spending, DELTA, name)) for name in ("rdp", "pld"))
    assert rdp[0] > 1.05 * pld[0]
    assert next(claimed_profile(spending, DELTA)) == pld
