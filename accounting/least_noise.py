"""Searches for the least noise whose epsilon is within a target, with few accountings.

An accounting takes a tenth of a second, or more for small noise. A search therefore starts from the
estimate by the central limit theorem (`accounting.central_limit`) and corrects the estimate by the
accountant's result. The search brackets the least noise only if the corrections do not converge,
which happens if epsilon is not a smooth function of noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.optimize import brentq

from accounting.central_limit import LEAST_NOISE, MOST_NOISE, noise_at, precision, precision_within
from accounting.events import Spending
from accounting.slack import cost_of_slack

_PRECISION, _TOLERANCE = 1e-5, 2.5e-6
"""Relative precision of z in a search, and the relative excess of z over the estimated least z at
which z is accepted. Where epsilon is steep in z, its relative error is several times as large, and
epsilon must still print as the target."""
_OUTWARD = 1 + _PRECISION / 10
"""Factor by which each step of a search exceeds the estimated least z."""
_STEPS = 7
_FURTHER = 1.25
_SLOPES = (0.2, 5.0)


def least_noise(
    spent: Callable[[float], float],
    target: float,
    delta: float,
    spending_at: Callable[[float], Spending],
) -> float | None:
    """Returns nearly the least z in [1e-3, 1e6] with epsilon at most `target`; None without one.

    No z is returned unless its epsilon was computed and is within the target.

    Args:
      spent: epsilon as a function of z.
      target: target epsilon.
      delta: delta of the guarantee.
      spending_at: the accounted events as a function of z.
    """
    tried: dict[float, float] = {}

    def remembered(z: float) -> float:
        if z not in tried:
            tried[z] = spent(z)
        return tried[z]

    z = _by_correction(remembered, target, delta, spending_at)
    if z is not None:
        return z
    nearest = min(tried, key=lambda z: abs(tried[z] - target), default=1.0)
    return bracketed(remembered, target, nearest)


def _by_correction(
    spent: Callable[[float], float],
    target: float,
    delta: float,
    spending_at: Callable[[float], Spending],
) -> float | None:
    """Returns nearly the least z by correcting an estimate; None if corrections do not converge.

    The accountant's epsilon, expressed as the precision of a Gaussian, is nearly proportional to
    the estimated precision, so secants between the logarithms of both start with a slope of 1.
    """
    wanted = _log_precision(target, spending_at(1.0), delta)
    if wanted is None:
        return None
    z, slope, before = noise_at(math.exp(wanted), spending_at), 1.0, None
    for _ in range(_STEPS):
        z = min(z * _OUTWARD, MOST_NOISE)
        spending, epsilon = spending_at(z), spent(z)
        if epsilon == math.inf:  # the cost of slack exceeds delta
            z *= _FURTHER
            continue
        guessed, answer = precision(spending), _log_precision(epsilon, spending, delta)
        if answer is None or not 0.0 < guessed < math.inf:
            return None
        now = math.log(guessed), answer
        if before and abs(now[0] - before[0]) > _PRECISION:
            slope = (now[1] - before[1]) / (now[0] - before[0])
        if not _SLOPES[0] < slope < _SLOPES[1]:
            return None
        least = noise_at(math.exp(now[0] + (wanted - now[1]) / slope), spending_at)
        if epsilon <= target and z <= least * (1 + _TOLERANCE):
            return z
        z, before = least, now
    return None


def _log_precision(epsilon: float, spending: Spending, delta: float) -> float | None:
    """Returns log(1 / z^2) of the Gaussian mechanism with this `epsilon`; None if no z has it."""
    slack = sum(event.slack * count for event, count in spending.items())
    left = delta - cost_of_slack(epsilon, slack)
    if not (0.0 < epsilon < math.inf and left > 0.0):
        return None
    return math.log(precision_within(epsilon, left))


def bracketed(spent: Callable[[float], float], target: float, start: float = 1.0) -> float | None:
    """Returns nearly the least z in [1e-3, 1e6] with `spent(z)` at most `target`; None without one.

    `spent` is any decreasing function; the search starts at `start`.
    """
    tried: dict[float, float] = {}

    def excess(z: float) -> float:
        if z not in tried:
            tried[z] = spent(z)
        return math.log(min(max(tried[z], 1e-300), 1e300) / target)  # nearly linear in log z

    low = high = start
    # Epsilon mostly decreases faster than 1 / z, so one stride brackets z; later strides double z.
    stride = min(1.1 * math.exp(min(abs(excess(start)), 1.0)), 2.0)
    while excess(high) > 0:
        low, high, stride = high, high * stride, 2.0
        if high > MOST_NOISE:
            return None
    while excess(low) <= 0:
        low, high, stride = low / stride, low, 2.0
        if low < LEAST_NOISE:
            return high
    brentq(excess, low, high, xtol=_PRECISION * low, rtol=_PRECISION)

    best = min(z for z, spent in tried.items() if spent <= target)
    worst = max(z for z, spent in tried.items() if spent > target)
    while best - worst > _TOLERANCE * best:
        middle = (best + worst) / 2
        best, worst = (middle, worst) if excess(middle) <= 0 else (best, middle)
    return best
