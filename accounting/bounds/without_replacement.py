"""Rényi divergence of the Gaussian mechanism under sampling without replacement.

Wang, Balle & Kasiviswanathan 2019, Theorem 27 (its tightened form), for replace-one. The theorem's
central moments are differences of plain moments that cancel almost entirely. In double precision
they are unusable (off by 1.5 % at order 62, in the unsafe direction), so they are computed with as
many additional digits as cancellation removes. The remaining sum has positive terms.
"""

from __future__ import annotations

import functools
import itertools
import math
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

_DIFFERENCES = 256
"""Largest i whose term uses central moments; later terms use the theorem's simpler bound."""
_MARGIN = 1 + 1e-9
"""Factor on the result, larger than the rounding error of the sums in double precision."""


def wor_divergence(rate: float, noise_multiplier: float, order: float) -> float:
    """Bounds the Rényi divergence at `order`, for a fraction `rate` sampled without replacement.

    The result never exceeds order / (2 z^2), the divergence for an adversary that knows the cohort.
    At fractional orders the cumulant, which is convex (Corollary 10), is interpolated.

    Args:
      rate: fraction of the clients that is sampled.
      noise_multiplier: noise standard deviation over the change made by a replacement.
      order: order of the divergence, above 1.
    """
    low, high = math.floor(order), math.ceil(order)
    cumulant = _cumulant(rate, noise_multiplier, low)
    if high > low:
        share = order - low
        cumulant = (1 - share) * cumulant + share * _cumulant(rate, noise_multiplier, high)
    plain = order / (2 * noise_multiplier**2)
    return min(cumulant / (order - 1) * _MARGIN, plain)


@functools.lru_cache(maxsize=256)
def _cumulant(rate: float, z: float, order: int) -> float:
    """Returns an upper bound on (order - 1) times the Rényi divergence; 0 at order 1.

    The bound is log(1 + sum_i q^i C(order, i) t_i) over i = 2, ..., order, with q = `rate` and t_i
    as in `_terms`.
    """
    if order == 1:
        return 0.0
    i = np.arange(2, order + 1)
    choose = gammaln(order + 1) - gammaln(i + 1) - gammaln(order - i + 1)
    return float(np.logaddexp(0.0, logsumexp(i * math.log(rate) + choose + _terms(z, order))))


def _terms(z: float, order: int) -> NDArray[np.float64]:
    """Returns the logarithms of t_i for i = 2, ..., order.

    t_i = min(4 sqrt(B(2 floor(i/2)) B(2 ceil(i/2))), 2 M(i)), where M is the likelihood ratio's
    moment and B its central one. At i = 2 this is the theorem's t_2 = min(4 (e^(1/z^2) - 1), 2
    e^(1/z^2)).
    """
    i = np.arange(2, order + 1)
    terms = math.log(2) + i * (i - 1) / (2 * z**2)
    low = i[: _DIFFERENCES - 1]
    central = _log_central(z)
    around = math.log(4) + (central[2 * (low // 2)] + central[2 * ((low + 1) // 2)]) / 2
    terms[: len(low)] = np.minimum(around, terms[: len(low)])
    return terms


@functools.lru_cache(maxsize=256)
def _log_central(z: float) -> NDArray[np.float64]:
    """Returns the logarithms of |E (ratio - 1)^l| for l = 0, 1, ...

    The central moments are the finite differences of M(x) = E ratio^x at x = 0. The l-th moment is
    at least of the order of z^-l, but is a sum of terms of up to 2^l M(l), which cancel; if M grows
    faster than l^l, the largest term dominates. The precision is increased by the digits that this
    cancellation removes.
    """
    count = _DIFFERENCES + 2
    lost = count * (0.31 + max(math.log10(z), 0.0))
    lost += min(0.22 * count**2 / z**2, count * math.log10(count))
    with localcontext(prec=40 + int(lost), Emax=MAX_EMAX, Emin=MIN_EMIN) as context:
        moments = _moments((1 / Decimal(z) ** 2).exp(), count)
        central = [moments[0]]
        for _ in range(count):
            moments = [after - before for before, after in itertools.pairwise(moments)]
            central.append(abs(moments[0]))
        context.prec = 40
        return np.array([float((+value).ln()) if value else -math.inf for value in central])


def _moments(step: Decimal, count: int) -> list[Decimal]:
    """Returns the moments M(x) = exp(x (x - 1) / (2 z^2)) at x = 0, ..., count.

    `step` is exp(1 / z^2), and M(x + 1) = M(x) step^x: at this precision a product costs a
    hundredth of an exponential.
    """
    growth = Decimal(1)
    moments = [growth]
    for _ in range(count):
        moments.append(moments[-1] * growth)
        growth *= step
    return moments
