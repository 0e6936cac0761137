"""Integer noise: its divergences against sums by hand, in one dimension and sampled."""

import math

import numpy as np
import pytest
from lanes import every_case, mostly_slow
from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp

from accounting.accountants import epsilon, supports
from accounting.bounds.integer_noise import (
    discrete_gaussian_divergence,
    skellam_divergence,
)
from accounting.bounds.poisson_sampling import poisson_sampled
from accounting.bounds.rdp import _curve, integer_divergence
from accounting.errors import Unaccountable
from accounting.events import ADD_REMOVE, ZERO_OUT, Event
from accounting.noises import DiscreteGaussians, Gaussian, Skellam
from accounting.over_rounds import Separated
from accounting.releases import PoissonSampled, release_from_json


def renyi(p, q, alpha):
    """D_alpha(p || q) of two log densities."""
    known = np.isfinite(p) & np.isfinite(q)
    return float(logsumexp(alpha * p[known] - (alpha - 1) * q[known])) / (alpha - 1)


def skellam_log(variance, shift):
    """The log density from the series of the Bessel function: it does not underflow far out."""
    k, m = np.abs(np.arange(-400, 401) - shift)[:, None], np.arange(600)[None, :]
    terms = (2 * m + k) * math.log(variance / 2) - gammaln(m + 1) - gammaln(m + k + 1)
    return -variance + logsumexp(terms, axis=1)


def sum_log(std, clients, shift):
    """The log density of a sum of discrete Gaussians, by convolution."""
    k = np.arange(-200, 201)
    one = np.exp(-(k**2) / (2 * std**2))
    one, total = one / one.sum(), np.ones(1)
    for _ in range(clients):
        total = np.convolve(total, one)
    middle = len(total) // 2
    return np.log(np.maximum(total[middle - 150 - shift : middle + 151 - shift], 1e-300))


@pytest.mark.parametrize("variance", [20.0, 60.0, 400.0])
@pytest.mark.parametrize("shift", [1, 3])
@pytest.mark.parametrize("alpha", mostly_slow([2, 3, 8, 32], 2, 32))
def test_skellams_bound_covers_the_true_divergence_and_is_near(variance, shift, alpha):
    true = max(
        renyi(skellam_log(variance, shift), skellam_log(variance, 0), alpha),
        renyi(skellam_log(variance, 0), skellam_log(variance, shift), alpha),
    )
    bound = skellam_divergence(alpha, variance, shift, shift)
    assert true <= bound * (1 + 1e-9)
    assert bound <= 2.2 * true


@every_case("std, clients", [(2.0, 3), (3.0, 8), (2.0, 20)])
@every_case("alpha", [2, 5, 16])
def test_the_bound_on_sums_of_discrete_gaussians_covers_the_true_divergence(std, clients, alpha):
    shift = 2
    true = renyi(sum_log(std, clients, shift), sum_log(std, clients, 0), alpha)
    bound = discrete_gaussian_divergence(alpha, std, clients, shift, shift, 1)
    assert true <= bound * (1 + 1e-6)
    assert bound <= 1.2 * true


@every_case("rate", [0.01, 0.3])
@every_case("alpha", [2, 4, 10])
def test_the_amplified_bound_covers_both_directions(rate, alpha):
    variance, shift = 60.0, 2
    here, there = skellam_log(variance, 0), skellam_log(variance, shift)
    mixed = np.logaddexp(math.log1p(-rate) + here, math.log(rate) + there)
    bound = poisson_sampled(
        lambda order: skellam_divergence(order, variance, shift, shift), rate, alpha
    )
    assert renyi(mixed, here, alpha) <= bound
    assert renyi(here, mixed, alpha) <= bound
    assert bound < skellam_divergence(alpha, variance, shift, shift)


def test_edges_of_sampling():
    def of(order):
        return skellam_divergence(order, 60.0, 2.0, 2.0)

    assert poisson_sampled(of, 1.0, 5) == of(5)
    assert poisson_sampled(of, 0.0, 5) == 0.0


def test_much_noise_on_a_fine_grid_is_gaussian():
    """At half the modulus the designs of published runs live here: both within a percent."""
    z, l2, d = 1.3, 2000.0, 1024
    skellam = Event(Skellam((z * l2) ** 2, l2, l2 * math.sqrt(d)), "full", ZERO_OUT)
    each = z * l2 / 10
    sums = Event(DiscreteGaussians(each, 100, l2, l2 * math.sqrt(d), d), "full", ZERO_OUT)
    gaussian = epsilon({Event(Gaussian(z), "full", ZERO_OUT): 3}, 1e-5, "rdp")
    for event in (skellam, sums):
        spent = epsilon({event: 3}, 1e-5, "rdp")
        assert gaussian * 0.999 <= spent <= gaussian * 1.01


@every_case("lost, published", [(0.1, 5.76), (0.2, 6.20), (0.3, 6.70), (0.5, 8.14)])
def test_dropouts_without_compensation_cost_what_is_published(lost, published):
    """Of noise designed for 5.41 at delta = 1e-4; within two percent."""

    def spent(scale, left):
        l2 = 5000.0
        noise = Skellam(left * (scale * l2) ** 2, l2, l2 * 30)
        return epsilon({Event(noise, "full", ZERO_OUT): 1}, 1e-4, "rdp")

    scale = brentq(lambda s: spent(s, 1.0) - 5.41, 0.2, 5.0)
    assert spent(scale, 1 - lost) == pytest.approx(published, rel=0.02)


def test_fractional_orders_are_refused_where_bounds_need_integers():
    """Truncated to the order 2, a sample's divergence of order 2.9 would be too small."""
    noise = DiscreteGaussians(50.0, 10, 100.0, 1000.0, 64)
    once = [integer_divergence(noise, order) for order in (2, 2.9, 3)]
    assert once == sorted(once)
    assert once[0] < once[1] < once[2]
    for release in (PoissonSampled(0.3, noise), Skellam(1e6, 1000.0, 1e4)):
        assert integer_divergence(release, 2.0) == integer_divergence(release, 2)
        with pytest.raises(ValueError, match=r"order 2\.9 is fractional"):
            integer_divergence(release, 2.9)


def test_exchanges_add_up_before_they_are_sampled_and_not_after():
    """T passes as T independent samples would claim far less than is true."""
    once, five = Skellam(1e6, 1000.0, 1e4), Skellam(1e6, 1000.0, 1e4, exchanges=5)
    assert integer_divergence(five, 7) == pytest.approx(5 * integer_divergence(once, 7))
    right = epsilon({Event(PoissonSampled(0.1, five), "poisson"): 20}, 1e-5, "rdp")
    wrong = epsilon({Event(PoissonSampled(0.1, once), "poisson"): 100}, 1e-5, "rdp")
    assert wrong < 0.6 * right
    assert five.noise_multiplier == pytest.approx(once.noise_multiplier / math.sqrt(5))


def test_fractional_orders_are_covered_by_the_whole_ones_around_them():
    """Against the true divergence, which is convex."""
    variance, shift = 60.0, 2
    orders, curve = _curve(Skellam(variance, shift, shift))
    here, there = skellam_log(variance, 0), skellam_log(variance, shift)
    for order, value in zip(orders, curve, strict=True):
        if order < 12:
            true = renyi(there, here, order)
            assert true <= value
            assert value <= 2 * true or order < 2


def test_events_are_recorded_and_only_what_is_proved_is_supported():
    releases = [
        Skellam(10.5, 2.0, 3.0, 2),
        DiscreteGaussians(2.5, 10, 2.0, 3.0, 64, 2),
        PoissonSampled(0.1, Skellam(10.0, 2.0, 3.0)),
        Separated(3, DiscreteGaussians(2.5, 10, 2.0, 3.0, 64)),
    ]
    for release in releases:
        assert release_from_json(release.to_json()) == release
    sampled = Event(releases[2], "poisson", ADD_REMOVE)
    assert supports(sampled, "rdp")
    assert not supports(sampled, "pld")
    assert not supports(Event(releases[2], "poisson", ZERO_OUT), "rdp")
    assert epsilon({sampled: 3}, 1e-5, "pld") is None
    with pytest.raises(Unaccountable, match="not known to this version"):
        release_from_json({"kind": "poisson", "rate": 0.1, "of": releases[3].to_json()})
    with pytest.raises(Unaccountable, match="variance"):
        Skellam(-1.0, 1.0, 1.0)


def test_no_noise_has_no_epsilon():
    assert epsilon({Event(Skellam(0.0, 10.0, 10.0), "full", ZERO_OUT): 1}, 1e-5, "rdp") == math.inf
