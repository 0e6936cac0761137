"""Poisson sampling of any mechanism: the bound against exact divergences, in both directions."""

import functools
import math

import mpmath
import numpy as np
import pytest
from dp_accounting import rdp as library
from lanes import every_case
from scipy.special import gammaln, ive, logsumexp

from accounting.accountants import epsilon, supports
from accounting.bounds.integer_noise import skellam_divergence
from accounting.bounds.poisson_sampling import poisson_sampled
from accounting.bounds.rdp import integer_divergence
from accounting.events import ADD_REMOVE, REPLACE_ONE, ZERO_OUT, Event
from accounting.noises import DiscreteGaussians, Gaussian, Skellam
from accounting.releases import PoissonSampled

RATES = (1e-4, 0.03, 0.2, 0.5, 0.9, 0.999)
ALPHAS = (2, 3, 4, 7, 20)


def renyi(p, q, alpha):
    """D_alpha(p || q) of two log densities."""
    return float(logsumexp(alpha * p - (alpha - 1) * q)) / (alpha - 1)


def mixed(p, q, rate):
    """The log density of the law that is p with probability `rate`, and q else."""
    return np.logaddexp(math.log(rate) + p, math.log1p(-rate) + q)


def curve_of(p, q):
    """The larger divergence of the two directions, exactly, as a function of the order."""
    return functools.cache(lambda k: max(renyi(p, q, k), renyi(q, p, k), 0.0))


def weighed(divergence, rate, alpha, skipped=(), less=1):
    """The bound's sum as it is written, or with a mistake: terms `skipped`, `less` per exponent."""
    k = np.array([k for k in range(alpha + 1) if k not in skipped])
    exponents = [(i - less) * divergence(i) if i > 1 else 0.0 for i in k.tolist()]
    ways = gammaln(alpha + 1) - gammaln(k + 1) - gammaln(alpha - k + 1)
    terms = ways + k * math.log(rate) + (alpha - k) * math.log1p(-rate) + exponents
    return float(logsumexp(terms)) / (alpha - 1)


def zhu_and_wang(divergence, rate, alpha):
    """The bound with a factor 3 from the third term on: what was charged before."""
    k = np.arange(3, alpha + 1)
    ways = gammaln(alpha + 1) - gammaln(k + 1) - gammaln(alpha - k + 1)
    growth = [(i - 1) * divergence(i) for i in k.tolist()]
    more = ways + k * math.log(rate) + (alpha - k) * math.log1p(-rate) + growth + math.log(2)
    exact = (alpha - 1) * weighed(divergence, rate, alpha)
    return float(np.logaddexp(exact, logsumexp(more))) / (alpha - 1)


def random_pairs(count, seed):
    """Log densities of asymmetric pairs on 2 to 6 points, from near to far apart."""
    draws = np.random.default_rng(seed)
    for _ in range(count):
        p, q = 10.0 ** draws.uniform(-2, 1) * draws.standard_normal((2, draws.integers(2, 7)))
        yield p - logsumexp(p), q - logsumexp(q)


def exceeds(true, claimed):
    """Whether a true divergence is above what was claimed, by more than rounding."""
    return true > claimed * (1 + 1e-9) + 1e-13


def refutations(bound, count, seed=1, curve=curve_of):
    """How many of `count` pairs, at a rate and an order each, refute `bound`: forward, reverse."""
    draws = np.random.default_rng(seed)
    forward = reverse = 0
    for p, q in random_pairs(count, seed):
        rate, alpha = draws.choice(RATES), int(draws.choice(ALPHAS))
        claimed, mixture = bound(curve(p, q), rate, alpha), mixed(p, q, rate)
        forward += exceeds(renyi(mixture, q, alpha), claimed)
        reverse += exceeds(renyi(q, mixture, alpha), claimed)
    return forward, reverse


@pytest.mark.parametrize("pairs", [500, pytest.param(3000, marks=pytest.mark.slow)])
def test_no_pair_of_laws_exceeds_the_bound_in_either_direction(pairs):
    assert refutations(poisson_sampled, pairs) == (0, 0)


@every_case("mistake", [{"skipped": (0,)}, {"skipped": (1,)}, {"skipped": (2,)}, {"less": 2}])
def test_a_bound_with_a_mistake_is_refuted(mistake):
    forward, _ = refutations(functools.partial(weighed, **mistake), 50)
    assert forward > 0


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_a_curve_of_one_direction_alone_is_not_enough(direction):
    def curve(p, q):
        first, second = (p, q) if direction == "forward" else (q, p)
        return functools.cache(lambda k: max(renyi(first, second, k), 0.0))

    forward, reverse = refutations(poisson_sampled, 100, curve=curve)
    assert (reverse if direction == "forward" else forward) > 0


def test_the_forward_direction_is_exact_where_it_is_the_larger_one():
    compared = 0
    for p, q in random_pairs(300, seed=2):
        if all(renyi(p, q, k) >= renyi(q, p, k) for k in range(2, 8)):
            true = renyi(mixed(p, q, 0.2), q, 7)
            claimed = poisson_sampled(curve_of(p, q), 0.2, 7)
            assert claimed == pytest.approx(true, rel=1e-9, abs=1e-13)
            compared += 1
    assert compared > 50


@every_case("rate", [1e-6, 0.05, 0.5, 0.97])
@every_case("alpha", [2, 3, 12, 64])
def test_it_holds_at_sixty_digits(rate, alpha):
    """Two points, masses down to 1e-8: what double precision could hide."""
    with mpmath.workdps(60):
        for near, far in [(0.5, 0.51), (1e-8, 0.3), (0.3, 1e-8), (0.999, 0.001), (1e-3, 2e-3)]:
            p, q = ([mpmath.mpf(x), 1 - mpmath.mpf(x)] for x in (near, far))
            mixture = [rate * a + (1 - rate) * b for a, b in zip(p, q, strict=True)]

            def exact(first, second, k):
                terms = (a**k * b ** (1 - k) for a, b in zip(first, second, strict=True))
                return mpmath.log(sum(terms)) / (k - 1)

            def curve(k, p=p, q=q, exact=exact):
                return float(max(exact(p, q, k), exact(q, p, k)))

            claimed = poisson_sampled(curve, rate, alpha)
            assert exact(mixture, q, alpha) <= claimed * (1 + 1e-12) + 1e-16
            assert exact(q, mixture, alpha) <= claimed * (1 + 1e-12) + 1e-16


def skellam(variance, shift=0):
    """The log density of Skellam noise at -60, ..., 60: a Bessel function."""
    return np.log(ive(np.abs(np.arange(-60, 61) - shift), variance))


@every_case("rate", [0.05, 0.3, 0.8])
@every_case("shift", [(2, 0), (1, 2), (3, -2)])
def test_skellam_in_two_dimensions_is_covered_both_ways(rate, shift):
    variance = 20.0
    without = np.add.outer(skellam(variance), skellam(variance)).ravel()
    with_it = np.add.outer(skellam(variance, shift[0]), skellam(variance, shift[1])).ravel()
    mixture = mixed(with_it, without, rate)
    noise = Skellam(variance, math.hypot(*shift), abs(shift[0]) + abs(shift[1]))
    for alpha in (2, 3, 6):
        true = renyi(mixture, without, alpha), renyi(without, mixture, alpha)
        tight = poisson_sampled(curve_of(with_it, without), rate, alpha)
        charged = integer_divergence(PoissonSampled(rate, noise), alpha)
        assert max(true) <= tight * (1 + 1e-6) <= charged * (1 + 2e-6)
        assert true[0] == pytest.approx(tight, rel=1e-6)


def test_the_least_of_the_proven_bounds_is_taken():
    """An order whose bound is far too large does not spoil a later one's."""

    def loose(k):
        return 50.0 if k == 2 else 0.1 * k

    assert weighed(loose, 0.5, 5) > loose(5)
    assert poisson_sampled(loose, 0.5, 5) == loose(5)
    assert poisson_sampled(loose, 1e-40, 5) < loose(5)


def test_small_rates_do_not_cancel():
    def curve(k):
        return k / 200

    exact = 1e-18 * math.expm1(curve(2))
    assert poisson_sampled(curve, 1e-9, 2) == pytest.approx(exact, rel=1e-9)
    assert poisson_sampled(lambda k: 0.0, 0.3, 9) == 0.0


def exchanges(rate):
    """Two exchanges of Skellam noise over one cohort; the second's shift depends on the first.

    Returns the log densities with the client and without it, `[2, points]`.
    """
    first = np.arange(-60, 61)[:, None]
    fixed, far, near = skellam(20.0), skellam(20.0, 3), skellam(20.0, 2)
    second = np.where(first > 1, far[None, :], near[None, :])
    with_it = (skellam(20.0, 3)[:, None] + second).ravel()
    without = np.add.outer(fixed, fixed).ravel()
    return mixed(with_it, without, rate), without


@every_case("alpha", [2, 4, 8])
def test_exchanges_are_composed_before_they_are_amplified(alpha):
    """The other way around is refuted: one coin decides on both."""
    rate = 0.1

    def once(k):
        return skellam_divergence(k, 20.0, 3.0, 3.0)

    mixture, without = exchanges(rate)
    true = max(renyi(mixture, without, alpha), renyi(without, mixture, alpha))
    assert true <= poisson_sampled(lambda k: 2 * once(k), rate, alpha)
    assert true > 1.05 * 2 * poisson_sampled(once, rate, alpha)
    both = Skellam(20.0, 3.0, 3.0, exchanges=2)
    assert true <= integer_divergence(PoissonSampled(rate, both), alpha)


def spent(release, rounds=60):
    return epsilon({Event(release, "poisson"): rounds}, 1e-3, "rdp")


def test_what_the_factor_three_cost():
    """q = 0.3, 60 rounds, z = 19.94 on a fine grid: 1.46 before, 1.15 with no sampling at all."""
    noise = Skellam((19.94 * 1e6) ** 2, 1e6, 32e6)
    orders = np.array([k for k in library.RdpAccountant().orders if k == int(k)], dtype=int)
    plain = functools.partial(integer_divergence, noise)
    before = 60 * np.array([zhu_and_wang(plain, 0.3, alpha) for alpha in orders.tolist()])
    assert library.compute_epsilon(orders, before, 1e-3)[0] == pytest.approx(1.46, abs=0.01)
    assert spent(noise) == pytest.approx(1.150, abs=1e-3)
    now, gaussian = spent(PoissonSampled(0.3, noise)), spent(PoissonSampled(0.3, Gaussian(19.94)))
    assert now == pytest.approx(0.2847, abs=1e-4)
    assert gaussian <= now <= 1.0001 * gaussian


@pytest.mark.parametrize("exchanges", [1, 3])
def test_discrete_gaussians_are_amplified_too(exchanges):
    l2, d, z = 2000.0, 1024, 5.0
    sums = DiscreteGaussians(z * l2 / 10, 100, l2, l2 * math.sqrt(d), d, exchanges)
    sampled = PoissonSampled(0.1, sums)
    gaussian = spent(PoissonSampled(0.1, Gaussian(z / math.sqrt(exchanges))))
    assert gaussian * 0.999 <= spent(sampled) <= 1.01 * gaussian < spent(sums)
    event = Event(sampled, "poisson")
    assert Event.from_json(event.to_json()) == event
    assert [supports(event, name) for name in ("rdp", "pld")] == [True, False]
    for relation in (ZERO_OUT, REPLACE_ONE):
        assert not supports(Event(sampled, "poisson", relation), "rdp")


def test_events_of_older_ledgers_are_accounted_as_before_or_better():
    line = {
        "release": {
            "kind": "poisson",
            "rate": 0.1,
            "of": {"kind": "skellam", "variance": 1e6, "l2": 500.0, "l1": 5000.0, "exchanges": 2},
        },
        "sampler": "poisson",
        "relation": ADD_REMOVE,
        "unit": "client",
    }
    event = Event.from_json(line)
    assert event.to_json() == line
    assert event == Event(PoissonSampled(0.1, Skellam(1e6, 500.0, 5000.0, 2)), "poisson")
    assert 0 < epsilon({event: 20}, 1e-5, "rdp") < epsilon({event: 40}, 1e-5, "rdp") < math.inf
