"""Approximation of composed privacy by the central limit theorem; an estimate, not a proof.

The privacy losses of many rounds add up to nearly a Gaussian distribution. Their composition is
therefore about as private as one Gaussian mechanism, whose precision 1 / z^2 is the sum of the
rounds' precisions (Dong, Roth & Su 2022, section 3; for Poisson samples: Bu et al. 2020). Searches
start from this estimate; accountants provide the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from scipy.optimize import brentq

from accounting.bounds.closed import log_delta
from accounting.choosing.repeat_and_select import RepeatAndSelect
from accounting.events import Spending, summable
from accounting.over_rounds import AllocatedEpoch
from accounting.releases import (
    PoissonSampled,
    SeveralSites,
    TruncatedPoisson,
    WithoutReplacement,
    noise_of,
)

LEAST_NOISE, MOST_NOISE = 1e-3, 1e6
_LOGARITHMS = (math.log(LEAST_NOISE), math.log(MOST_NOISE))
_MOST = 1e300


def precision(spending: Spending) -> float:
    """Returns 1 / z^2 of the Gaussian that approximates `spending`; infinite without noise."""
    return sum(count * _precision(event.release) for event, count in summable(spending).items())


def _precision(release: Any) -> float:
    """Returns a release's precision: the likelihood ratio's variance, but at most 1 / z^2."""
    if isinstance(release, RepeatAndSelect):
        return sum(count * _precision(part) for part, count in release.of)
    noise = noise_of(release)
    if noise is None or noise.noise_multiplier == 0.0:
        return math.inf
    alone = noise.noise_multiplier**-2
    once = math.expm1(min(alone, 50.0))
    match release:
        case PoissonSampled(rate=q) | TruncatedPoisson(rate=q):
            return min(q * q * once, alone)
        case WithoutReplacement(cohort=m, clients=n):
            return min((m / n) ** 2 * once, alone)
        case AllocatedEpoch(choices=choices):
            return min(once / choices, alone)
        case SeveralSites(rate=q, sites=sites):
            return sites**2 * min(q * q * once, alone)
    return alone


def precision_within(epsilon: float, delta: float) -> float:
    """Returns 1 / z^2 of the least noisy (epsilon, delta)-DP Gaussian, z in [1e-3, 1e6]."""

    def excess(log_noise: float) -> float:
        return max(log_delta(epsilon, math.exp(log_noise)), -_MOST) - math.log(delta)

    return math.exp(-2 * _root(excess))


def noise_at(wanted: float, spending_at: Callable[[float], Spending]) -> float:
    """Returns the noise multiplier z at which `spending_at(z)` has about the precision `wanted`.

    Returns the nearest end of [1e-3, 1e6] if no z in that range has this precision.
    """

    def excess(log_noise: float) -> float:
        at = precision(spending_at(math.exp(log_noise)))
        return math.log(min(max(at, 1 / _MOST), _MOST) / wanted)

    return math.exp(_root(excess))


def _root(falling: Callable[[float], float]) -> float:
    """Returns the root of a `falling` function of log z, z in [1e-3, 1e6], or the nearest end."""
    low, high = _LOGARITHMS
    if falling(low) <= 0:
        return low
    if falling(high) >= 0:
        return high
    return float(brentq(falling, low, high, xtol=1e-9))
