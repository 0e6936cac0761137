"""Rényi divergence of random allocation, both directions.

The setting is that of `accounting.bounds.random_allocation`.

R_t = (1/t) sum_i exp(L_i), with L_i independent N(-1/(2 z^2), 1/z^2), is the likelihood ratio of
the dominating pair of an epoch of t slots. Powers of R_t are convex, so that for every client:

*Remove*: (a - 1) D_a(P || Q) <= log E[R_t^a], with equality for unit rows. At integer a the moment
follows by a recursion: R_{m+n} = (m R_m + n R_n) / (m + n) with independent R_m and R_n, so by the
binomial theorem

    E[R_{m+n}^a] = sum_k Binom(a, m / (m + n))(k) E[R_m^k] E[R_n^{a-k}],

from E[R_1^a] = exp(a (a - 1) / (2 z^2)), in at most 2 log2 t steps. This is t^-a a! times the
coefficient of x^a in (sum_k x^k / k! exp(k (k - 1) / (2 z^2)))^t (a sum over partitions: Feldman &
Shenfeld 2025, arXiv 2502.08202); since the binomial weights are positive and sum to 1, nothing
cancels. E[R_t^2] is 1 + (exp(1/z^2) - 1) / t. Between integer orders (a - 1) D_a is convex in a
(van Erven & Harremoes 2014, Corollary 2), so linear interpolation between neighbouring integer
orders bounds it from above; at order 1 it is 0.

*Add*: (a - 1) D_a(Q || P) <= log E[R_t^(1-a)]. The arithmetic mean R_t is at least the geometric
one, exp(M), M = (1/t) sum_i L_i ~ N(-1/(2 z^2), 1/(t z^2)), and 1 - a < 0. So log E[R_t^(1-a)] is
at most log E[exp((1 - a) M)] = (a - 1) / (2 z^2) + (a - 1)^2 / (2 t z^2):

    D_a(Q || P) <= (1 - 1/t) / (2 z^2) + a / (2 t z^2).

This second bound is loose at small orders, and is often the larger one: privacy loss distributions
give a smaller epsilon. Neither bound exceeds the divergence a / (2 z^2) of the Gaussian mechanism.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln, logsumexp

from accounting.bounds.spread import Numbers

_BATCH_SIZE = 64
"""Number of orders summed at once; all orders together would take memory for 1e6 terms."""


def allocation_divergences(slots: int, noise_multiplier: float, orders: Numbers) -> Numbers:
    """Bounds the Rényi divergences of one epoch of `slots` slots, at each of `orders`.

    Returns the larger bound `[n]` of the directions add and remove. The `orders` `[n]` are above 1.
    """
    orders = np.asarray(orders, dtype=float)
    most = math.ceil(float(orders.max()))
    moments = log_moments(slots, noise_multiplier, most)
    removed = np.interp(orders, np.arange(most + 1), moments) / (orders - 1)
    return np.asarray(np.maximum(removed, added_divergences(slots, noise_multiplier, orders)))


def added_divergences(slots: int, noise_multiplier: float, orders: Numbers) -> Numbers:
    """Bounds the Rényi divergence of an epoch without a client from one with it, at each order.

    `orders` `[n]` are above 1; the result bounds D_a(Q || P), with Q without the client.
    """
    return np.asarray((1 - 1 / slots + orders / slots) / (2 * noise_multiplier**2))


def log_moments(slots: int, noise_multiplier: float, most: int) -> Numbers:
    """Returns log E[R^a] at a = 0, ..., most, with R = dP/dQ of an epoch of `slots`, under Q."""
    orders = np.arange(most + 1)
    return _of_mean(slots, orders * (orders - 1) / (2 * noise_multiplier**2))


def _of_mean(count: int, single: Numbers) -> Numbers:
    """Returns log moments `[n]` of a mean of `count` i.i.d. numbers with log moments `single`.

    Log moments of X are log E[X^k] for k = 0, ..., n - 1.
    """
    if count == 1:
        return single
    half = _of_mean(count // 2, single)
    even = _mixture_log_moments(half, half, 0.5)
    return even if count % 2 == 0 else _mixture_log_moments(even, single, (count - 1) / count)


def _mixture_log_moments(first: Numbers, second: Numbers, share: float) -> Numbers:
    """Returns log E[Z^k] for k = 0, ..., n - 1 of Z = share X + (1 - share) Y.

    X and Y are independent; `first` and `second` `[n]` are the same of X and of Y.
    """
    pieces = np.array_split(np.arange(len(first)), -(-len(first) // _BATCH_SIZE))
    return np.concatenate([_sums(piece, first, second, share) for piece in pieces])


def _sums(orders: np.ndarray, first: Numbers, second: Numbers, share: float) -> Numbers:
    """Returns `_mixture_log_moments` at ascending `orders` `[m]`, by the binomial sum over k."""
    a, k = orders[:, None], np.arange(orders[-1] + 1)
    rest = np.maximum(a - k, 0)
    log_factorials = gammaln(np.arange(len(first)) + 1.0)
    weights = log_factorials[a] - log_factorials[k] - log_factorials[rest]
    weights = weights + k * math.log(share) + rest * math.log1p(-share)
    terms = np.where(k <= a, weights + first[k] + second[rest], -np.inf)
    return np.asarray(logsumexp(terms, axis=1))
