"""Searches for the least noise whose epsilon is within a target, by few accountings.

An accounting takes a tenth of a second, and more than that where noise is small. So a search begins
at the guess of the central limit theorem, corrects it by what the accountant answers, and brackets
the least noise only where that does not settle: where epsilon is no smooth function of noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.optimize import brentq

from accounting.central_limit import LEAST_NOISE, MOST_NOISE, noise_at, precision, precision_within
from accounting.events import Spending
from accounting.slack import price_of_slack

_PRECISION, _TOLERANCE = 1e-5, 2.5e-6
"""Of a search, and of what it settles for: where epsilon falls steeply, it moves by some times as
much, and is to print as the target."""
_OUTWARD = 1 + _PRECISION / 10
"""Steps end this much on the private side of where they aim at."""
_STEPS = 7
_FURTHER = 1.25
_SLOPES = (0.2, 5.0)


def least_noise(
    spent: Callable[[float], float],
    target: float,
    delta: float,
    spending_at: Callable[[float], Spending],
) -> float | None:
    """The least z in [1e-3, 1e6], nearly, whose epsilon `spent(z)` is at most `target`, if any.

    `spending_at(z)` is what is accounted for, at `delta`. No z is returned whose epsilon was not
    computed and is within the target.
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
    """The least z by correcting a guess; None where that does not settle.

    The accountant's epsilon, told as the precision of a Gaussian, is nearly the guessed precision
    times a constant: so secants between the logarithms of both begin with a slope of 1.
    """
    wanted = _precision_told(target, spending_at(1.0), delta)
    if wanted is None:
        return None
    z, slope, before = noise_at(math.exp(wanted), spending_at), 1.0, None
    for _ in range(_STEPS):
        z = min(z * _OUTWARD, MOST_NOISE)
        spending, epsilon = spending_at(z), spent(z)
        if epsilon == math.inf:  # aborts, or nearly exact noise, take all of delta
            z *= _FURTHER
            continue
        guessed, answer = precision(spending), _precision_told(epsilon, spending, delta)
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


def _precision_told(epsilon: float, spending: Spending, delta: float) -> float | None:
    """log(1 / z^2) of the Gaussian that is as private as `spending` is; None where nothing is."""
    slack = sum(event.slack * count for event, count in spending.items())
    left = delta - price_of_slack(epsilon, slack)
    if not (0.0 < epsilon < math.inf and left > 0.0):
        return None
    return math.log(precision_within(epsilon, left))


def bracketed(spent: Callable[[float], float], target: float, start: float = 1.0) -> float | None:
    """The least z in [1e-3, 1e6], nearly, with `spent(z)` at most `target`, if any.

    `spent` is any function that falls; no guess is needed but where to `start`.
    """
    tried: dict[float, float] = {}

    def excess(z: float) -> float:
        if z not in tried:
            tried[z] = spent(z)
        return math.log(min(max(tried[z], 1e-300), 1e300) / target)  # nearly a line in z

    low = high = start
    # Epsilon mostly falls faster than 1 / z: one stride then brackets z, else the next are doubled.
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
