"""Rényi divergences of the Gaussian mechanism on a Poisson sample, by dp-accounting's sums.

The sums are those of Mironov, Talwar & Zhang 2019 (arXiv 1908.10530, Section 3.3). dp-accounting
adds their terms one by one. Here all terms are computed at once, and added in the same order, so
divergences equal the library's except for rounding.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, log_ndtr

Numbers = NDArray[np.float64]

_STEPS = (64, 1000)
"""Numbers of terms at fractional orders: few first, then dp-accounting's largest number."""
_SMALL = 30
"""The sum ends when its terms decrease and are smaller than it by e^30, as in dp-accounting."""


def sampled_divergences(rate: float, noise_multiplier: float, orders: Numbers) -> Numbers:
    """Returns the divergences at `orders`; infinite at an order where the sum does not converge.

    Args:
      rate: sampling rate q, in (0, 1).
      noise_multiplier: noise standard deviation over the clipping norm, positive.
      orders: orders of the divergences, above 1.
    """
    moments = np.full(len(orders), np.inf)
    integer = orders == np.floor(orders)
    moments[integer] = [
        _at_integer(rate, noise_multiplier, int(order)) for order in orders[integer]
    ]
    for steps in _STEPS:
        unsolved = ~integer & np.isinf(moments)
        moments[unsolved] = _at_fractions(rate, noise_multiplier, orders[unsolved][:, None], steps)
    return np.where(np.isnan(moments), np.inf, moments / (orders - 1))  # if z^2 is 0 in float64


def _at_integer(q: float, z: float, order: int) -> float:
    i = np.arange(order + 1)
    terms = _log_binomials(order, i) + i * math.log(q) + (order - i) * math.log1p(-q)
    return float(np.logaddexp.accumulate(terms + (i * i - i) / (2 * z**2))[-1])


def _at_fractions(q: float, z: float, orders: Numbers, steps: int) -> Numbers:
    """Returns log-moments at `orders` `[n, 1]` from at most `steps` terms; else infinity."""
    i = np.arange(steps)
    j, ways, cut = orders - i, _log_binomials(orders, i), z**2 * math.log(1 / q - 1) + 0.5
    below = ways + i * math.log(q) + j * math.log1p(-q) + (i * i - i) / (2 * z**2)
    above = ways + j * math.log(q) + i * math.log1p(-q) + (j * j - j) / (2 * z**2)
    below, above = below + log_ndtr((cut - i) / z), above + log_ndtr((j - cut) / z)
    sums = np.logaddexp(*(np.logaddexp.accumulate(each, axis=1) for each in (below, above)))
    falling = (np.diff(below) < 0) & (np.diff(above) < 0)
    ended = falling & (np.maximum(below, above)[:, 1:] < sums[:, 1:] - _SMALL)
    first = sums[np.arange(len(sums)), ended.argmax(axis=1) + 1]
    return np.where(ended.any(axis=1), first, np.inf)


def _log_binomials(order: Any, i: NDArray[np.int_]) -> Any:
    return gammaln(order + 1) - gammaln(i + 1) - gammaln(order - i + 1)
