"""Sums of discrete Gaussian shares, certified against the Gaussian mechanism to 60 digits."""

import functools
import math

import mpmath
import numpy as np
import pytest
from distributed_noise import fits, gaussian_cdf
from lanes import mostly_slow
from scipy import stats

from privfed.core.streams import Keys
from privfed.privacy.noise.shares import JOINED, LEAST_GAUSSIAN, SMOOTHED, DiscreteGaussianShare

EXACT = mpmath.mp.clone()
EXACT.dps = 60
TAIL = 18
"""Standard deviations of a support, beyond which a Gaussian has less than 1e-70."""


def gaussian(variance, at):
    """Returns exp(-at^2 / (2 variance)), which is the density up to its constant."""
    return EXACT.exp(-(EXACT.mpf(at) ** 2) / (2 * EXACT.mpf(variance)))


def discrete_gaussian(variance):
    """Returns P[k] for k from -K to K."""
    most = math.ceil(TAIL * math.sqrt(variance))
    weights = [gaussian(variance, k) for k in range(most + 1)]
    total = weights[0] + 2 * sum(weights[1:])
    return [weight / total for weight in (*weights[:0:-1], *weights)]


def convolved(one, other):
    """Returns the distribution of a sum, exactly, by one product of integers of 300 bits a term."""
    bits, width = 260, 640
    numbers = [
        sum(int(EXACT.ldexp(p, bits)) << (width * place) for place, p in enumerate(each))
        for each in (one, other)
    ]
    product, mask = numbers[0] * numbers[1], (1 << width) - 1
    count = len(one) + len(other) - 1
    terms = [(product >> (width * place)) & mask for place in range(count)]
    return [EXACT.ldexp(term, -2 * bits) for term in terms]


@functools.cache
def summed(*variances):
    """Returns the distribution of the sum of discrete Gaussians, by exact convolution."""
    return functools.reduce(convolved, map(discrete_gaussian, variances))


def smoothed(variance, smoothing):
    """Returns P[N_Z(G, smoothing) = k], G ~ N(0, variance - smoothing), by the trapezoidal rule.

    The rule's error falls as exp(-2 pi^2 variance / step^2): below 1e-80 here.
    """
    most, parts = math.ceil(TAIL * math.sqrt(variance)), 4
    near = math.ceil(TAIL * math.sqrt(smoothing))
    kernels = []
    for part in range(parts):
        around = [gaussian(smoothing, k - EXACT.mpf(part) / parts) for k in range(-near, near + 1)]
        kernels.append([weight / sum(around) for weight in around])
    found = [EXACT.mpf(0)] * (2 * most + 1)
    scale = parts * EXACT.sqrt(2 * EXACT.pi * (EXACT.mpf(variance) - EXACT.mpf(smoothing)))
    for x in range(-most, most):
        for part, kernel in enumerate(kernels):
            density = gaussian(variance - smoothing, x + EXACT.mpf(part) / parts) / scale
            for place in range(max(-most, x - near), min(most, x + near) + 1):
                found[place + most] += density * kernel[place - x + near]
    return found


def distance(one, other):
    """Returns the total variation distance of two distributions that are centred at 0."""
    least = min(len(one), len(other)) // 2
    parts = [each[len(each) // 2 - least : len(each) // 2 + least + 1] for each in (one, other)]
    inside = sum(abs(p - q) for p, q in zip(*parts, strict=True))
    return (inside + sum(abs(1 - sum(part)) for part in parts)) / 2


def is_post_processing(*variances):
    """The theorem of `DiscreteGaussianShare`."""
    limit = smoothed(sum(variances), SMOOTHED)
    assert distance(summed(*variances), limit) < len(variances) * JOINED, "far from the limit"


@pytest.mark.parametrize(
    "variances", [(9.0,), (9.0, 9.0), (9.0, 11.5), (9.0, 9.0, 9.0, 9.0), (60.0, 9.0, 10.25)]
)
def test_a_sum_of_shares_is_post_processing_of_a_gaussian(variances):
    is_post_processing(*variances)


def test_the_distance_that_is_charged_is_that_of_two_shares_of_three_steps():
    """The bound is nearly attained, and shares of two steps are far beyond it."""
    nearest = distance(summed(9.0, 9.0), smoothed(18.0, SMOOTHED))
    assert JOINED / 20 < nearest < 2 * JOINED
    assert 2 * EXACT.exp(-2 * EXACT.pi**2 * SMOOTHED) < JOINED
    assert LEAST_GAUSSIAN**2 / 2 == SMOOTHED
    with pytest.raises(AssertionError, match="far from"):
        is_post_processing(9.0, 4.0)
    with pytest.raises(AssertionError, match="far from"):
        is_post_processing(4.0, 4.0, 4.0)


def divergence(probabilities, shift, epsilon):
    """Returns the hockey-stick divergence of a distribution from its own shift."""
    factor = EXACT.exp(epsilon)
    moved = [EXACT.mpf(0)] * shift + probabilities
    pairs = zip(probabilities + [EXACT.mpf(0)] * shift, moved, strict=True)
    return sum(max(q - factor * p, 0) for p, q in pairs)


def profile(variance, shift, epsilon):
    """Returns the divergence of N(shift, variance) from N(0, variance) (Balle & Wang 2018)."""
    mu = shift / EXACT.sqrt(variance)
    above, below = (EXACT.ncdf(sign * mu / 2 - epsilon / mu) for sign in (1, -1))
    return above - EXACT.exp(epsilon) * below


EPSILONS = [0.0, 0.1, 0.5, 1.0, 2.0, 4.0]


def within_profile(variances, counted, shifts):
    """No shift's divergence is above that of the Gaussian that is charged."""
    total, charged = summed(*variances), EXACT.mpf(counted) - SMOOTHED
    for shift in shifts:
        for epsilon in map(EXACT.mpf, EPSILONS):
            slack = (1 + EXACT.exp(epsilon)) * len(variances) * JOINED
            claimed = profile(charged, shift, epsilon) + slack
            assert divergence(total, shift, epsilon) <= claimed, "more than is claimed"


@pytest.mark.parametrize(
    ("deviation", "parties"),
    mostly_slow(
        [(deviation, parties) for deviation in (3.0, 4.5) for parties in (2, 3, 5, 10)],
        *((3.0, 2), (3.0, 3), (3.0, 10), (4.5, 2), (4.5, 3)),
    ),
)
def test_divergences_of_shifts_are_at_most_those_of_the_gaussian(parties, deviation):
    """By exact convolution, for all integer shifts up to four standard deviations."""
    variances = (deviation**2,) * parties
    most = math.floor(4 * deviation * math.sqrt(parties))
    within_profile(variances, sum(variances), range(1, most + 1, max(1, most // 12)))


def test_a_colluders_share_that_is_counted_is_noticed():
    """The adversary subtracts it, so that three of four shares remain."""
    within_profile((9.0,) * 3, 27.0, [1, 5, 12])
    with pytest.raises(AssertionError, match="more than is claimed"):
        within_profile((9.0,) * 3, 36.0, [1, 5, 12])


def test_shifts_in_two_dimensions_are_charged_by_their_norm():
    """A shift of norm 5 in any direction, in double precision."""
    variance = 4 * 9.0
    at = np.arange(-110, 111)
    weights = np.exp(-(at**2) / (2 * variance))
    plane = np.outer(weights, weights) / weights.sum() ** 2
    for shift in ((5, 0), (3, 4), (-4, 3)):
        moved = np.roll(plane, shift, axis=(0, 1))
        for epsilon in EPSILONS:
            found = np.maximum(moved - math.exp(epsilon) * plane, 0.0).sum()
            assert found <= float(profile(variance - SMOOTHED, 5, EXACT.mpf(epsilon))) + 1e-14


def shares(draw, parties=4, variance=9.0, count=200_000):
    """Returns the sum of what `parties` draw of shares of `variance`."""
    return sum(draw(DiscreteGaussianShare(variance), party, count) for party in range(parties))


def has_the_sums_distribution(draw):
    sample, deviation = shares(draw), math.sqrt(4 * 9.0)
    assert fits(sample, gaussian_cdf(deviation), -3 * deviation, 3 * deviation) > 1e-6
    spread = float((np.asarray(sample, float) ** 2).sum()) / deviation**2
    tail = min(stats.chi2.cdf(spread, len(sample)), stats.chi2.sf(spread, len(sample)))
    assert tail > 1e-7, "another variance"


def fresh(share, party, count):
    return share.draw(Keys(None), count)


def scaled(factor):
    """Noise of another scale."""

    def draw(share, party, count):
        return DiscreteGaussianShare(share.variance * factor).draw(Keys(None), count)

    return draw


def rounded_down(share, party, count):
    """The floor of real noise, in place of noise on the integers."""
    reals = np.random.default_rng().normal(0.0, math.sqrt(share.variance), count)
    return np.floor(reals).astype(np.int64)


def of_one_seed(share, party, count):
    """The same seed for each party, so that their noise is the same."""
    return share.draw(Keys(b"16 bytes of seed"), count)


def half_steps(share, party, count):
    """Noise on a grid of half steps, which a sum of integers cannot hold."""
    return share.draw(Keys(None), count) / 2 * math.sqrt(2)


def test_sums_of_shares_have_the_distribution_that_is_charged():
    has_the_sums_distribution(fresh)


@pytest.mark.parametrize(
    "fault", [scaled(0.94), scaled(1.06), rounded_down, of_one_seed, half_steps]
)
def test_sums_of_other_shares_are_noticed(fault):
    with pytest.raises(AssertionError):
        has_the_sums_distribution(fault)
