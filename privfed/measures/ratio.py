"""The interval of a ratio of two noised numbers (Fieller 1954).

A ratio r = y / x of means is in the interval where y - r x is no further from 0 than its deviation
explains. Unlike the delta method this says so where x itself may be 0: every ratio is possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Variances:
    """The variances of y and x, and their covariance."""

    y: float
    x: float
    covariance: float = 0.0


Interval = tuple[float, float]
EVERY: Interval = (-math.inf, math.inf)


def ratio_interval(y: float, x: float, variances: Variances, quantile: float) -> Interval | None:
    """All r with (y - r x)^2 <= quantile^2 Var[y - r x], for an x that is known to be positive.

    `EVERY` ratio, where x is no larger than its variance explains, and None where no ratio is.
    """
    k = quantile**2
    a = x * x - k * variances.x
    if x <= 0 or a <= 0:
        return EVERY
    middle = (x * y - k * variances.covariance) / a
    square = middle * middle - (y * y - k * variances.y) / a
    if square < -1e-12 * middle * middle:
        return None
    spread = math.sqrt(max(square, 0.0))
    return middle - spread, middle + spread


def widest(intervals: Iterable[Interval | None]) -> Interval:
    """From the least end of these intervals to the largest; `EVERY` number, where there is none."""
    ends = [interval for interval in intervals if interval is not None]
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else EVERY
