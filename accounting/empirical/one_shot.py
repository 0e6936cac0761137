"""An estimate of epsilon from canaries of one run; it is not a bound.

A canary's statistic is modelled as Gaussian, with one mean and standard deviation if the canary is
excluded from the population and others if it is included. The estimate is the epsilon between these
two Gaussians. Source: Andrew, Kairouz, Oh, Oprea, McMahan & Suriyakumar 2024, "One-shot empirical
privacy estimation for federated learning", sections 3 and 4. The estimate may err in either
direction and is biased upward: use it for monitoring.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr

from accounting.errors import Unaccountable

Numbers = NDArray[np.float64]
_LARGEST = 1e4


@dataclass(frozen=True)
class Bell:
    """A Gaussian distribution."""

    mean: float
    std: float

    @classmethod
    def fitted(cls, samples: Numbers) -> Bell:
        """Returns the Gaussian fitted to `samples` `[n]`. Raises `Unaccountable` if n < 2."""
        if len(samples) < 2:
            raise Unaccountable(
                f"the number of samples is {len(samples)}, but a Gaussian cannot be fitted to so "
                "few; expected at least 2"
            )
        return cls(float(samples.mean()), float(samples.std(ddof=1)))

    def between(self, low: float, high: float) -> float:
        """Returns the probability of [low, high] under this Gaussian; `std` must be positive."""
        a, b = ((edge - self.mean) / self.std for edge in (low, high))
        # For two large numbers, use the difference of the small tails.
        return float(ndtr(b) - ndtr(a)) if a < 0 else float(ndtr(-a) - ndtr(-b))


def estimate(out: Numbers, into: Numbers, delta: float) -> float:
    """Returns epsilon between Gaussians fitted to the statistics of two groups of canaries.

    Args:
      out: statistics of excluded canaries, shape [n].
      into: statistics of included canaries, shape [m].
      delta: delta of the estimate.

    Raises:
      Unaccountable: if a group has fewer than two canaries.
    """
    return epsilon_between(Bell.fitted(out), Bell.fitted(into), delta)


def epsilon_between(p: Bell, q: Bell, delta: float) -> float:
    """Returns the least epsilon at which the two Gaussians are (epsilon, delta)-indistinguishable.

    For example, for the Gaussian mechanism at noise multiplier 1:

    >>> round(epsilon_between(Bell(0.0, 1.0), Bell(1.0, 1.0), 1e-5), 3)
    4.377
    """
    if not p.std or not q.std:
        return 0.0 if p == q else math.inf
    return max(_one_way(p, q, delta), _one_way(q, p, delta))


def _one_way(p: Bell, q: Bell, delta: float) -> float:
    """Returns the least epsilon with P(S) <= e^epsilon Q(S) + delta for every S."""
    if _excess(p, q, 0.0) <= delta:
        return 0.0
    if _excess(p, q, _LARGEST) > delta:
        return math.inf
    return float(brentq(lambda at: _excess(p, q, at) - delta, 0.0, _LARGEST, xtol=1e-9))


def _excess(p: Bell, q: Bell, epsilon: float) -> float:
    """Returns the supremum over S of P(S) - e^epsilon Q(S).

    S is the set where the log ratio of the densities is above epsilon. The log ratio is a parabola,
    a x^2 + b x + c, with x in standard deviations of q about its mean.
    """
    shift, scale = (p.mean - q.mean) / q.std, p.std / q.std
    a, b = 0.5 - 0.5 / scale**2, shift / scale**2
    c = -0.5 * (shift / scale) ** 2 - math.log(scale) - epsilon
    total = 0.0
    for low, high in _where_positive(a, b, c):
        edges = q.mean + q.std * low, q.mean + q.std * high
        below = q.between(*edges)
        total += p.between(*edges) - (math.exp(epsilon + math.log(below)) if below > 0 else 0.0)
    return total


def _where_positive(a: float, b: float, c: float) -> list[tuple[float, float]]:
    """Returns the intervals on which a x^2 + b x + c > 0."""
    if abs(a) < 1e-12:
        if b == 0.0:
            return [(-math.inf, math.inf)] if c > 0 else []
        return [(-c / b, math.inf)] if b > 0 else [(-math.inf, -c / b)]
    inner = b * b - 4 * a * c
    if inner <= 0:
        return [(-math.inf, math.inf)] if a > 0 else []
    root = -0.5 * (b + math.copysign(math.sqrt(inner), b))
    low, high = sorted((root / a, c / root))
    return [(-math.inf, low), (high, math.inf)] if a > 0 else [(low, high)]
