"""Bands whose noise on the prefix sums of a run is least, at the same guarantee and memory.

The coefficients c_0 = 1, c_1, ..., c_(bands-1) minimise log(|c|^2 |A C^-1|_F^2) over T rounds, with
A the prefix sums. A client's participations lie at least `bands` rounds apart, so that its columns
of C are disjoint and the sensitivity is sqrt(k) |c|, whatever the coefficients are: solving for
them needs no proof, and other numbers of rounds than solved for cost accuracy, never privacy.

*Gradient.* With w = C^-1 1 and u_t = T - t, |A C^-1|_F^2 = sum_t u_t w_t^2. Differentiating C w = 1
by c_j gives C dw = -(w shifted by j), hence -sum_t lambda_t w_(t-j), with C^T lambda = 2 u w: two
filters, one of them backwards in time, and a correlation.

Source: McKenna 2024, arXiv 2405.15913.

The noise on prefix sums that a factorisation leaves, and the square root of the prefix sums.

Releases are x_t + Y_t with C Y = Z, and Z has independent rows. C `[T, T]` is lower-triangular
Toeplitz; its column from the diagonal downwards is given by its coefficients c `[bands]`, zero
after them. A model that sums releases has the noise A C^-1 Z, with A the lower-triangular ones.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.signal import correlate, lfilter

Numbers = NDArray[np.float64]


def square_root(bands: int) -> Numbers:
    """The first coefficients `[bands]` of (1 - x)^(-1/2): 1, 1/2, 3/8, 5/16, ...

    c_j = c_(j-1) (2 j - 1) / (2 j). With as many bands as rounds, C C = A. Source: Fichtenberger,
    Henzinger & Upadhyay 2023; cut after `bands`: Kalinin & Lampert 2024, arXiv 2405.13763.
    """
    steps = np.arange(1, bands)
    return np.concatenate([[1.0], np.cumprod((2 * steps - 1) / (2 * steps))])


def inverse_sums(coefficients: Numbers, rounds: int) -> Numbers:
    """The prefix sums w `[rounds]` of the column of C^-1, which are C^-1 1.

    A C^-1 is Toeplitz too, and w is its column.
    """
    return np.asarray(lfilter([1.0], coefficients[:rounds], np.ones(rounds)))


def prefix_noise(coefficients: Numbers, rounds: int) -> float:
    """The root mean square noise on prefix sums over `rounds`, against independent noise's.

    Both are at the same guarantee, and a client's participations are at least `bands` rounds apart,
    so that k of them move C x by sqrt(k) |c|: |c| |A C^-1|_F / |A|_F.
    """
    norm = float(np.linalg.norm(coefficients))
    return relative_noise(inverse_sums(coefficients, rounds), norm)


def relative_noise(sums: Numbers, sensitivity: float) -> float:
    """The same for any `sensitivity`, over the sqrt(k) of independent noise.

    `sums` `[rounds]` is the column of A C^-1. Where a client's columns overlap, the sensitivity is
    more than |c|: see `accounting.bounds.toeplitz_sensitivity`.
    """
    weights = rows_below(len(sums))
    return sensitivity * math.sqrt(float(weights @ sums**2) / float(weights.sum()))


def rows_below(rounds: int) -> Numbers:
    """The number of rows `[rounds]` in which each entry of a Toeplitz column stands: T, ..., 1."""
    return np.arange(rounds, 0, -1, dtype=float)


UNIT = 2.0**-20
"""Every coefficient is a whole multiple of it, so that integers can be multiplied by it exactly."""
_LARGEST = 0.9999
_STEPS = 5_000
_RESTARTS = 50
_STAYS = 1e-9
"""A restart that lowers the logarithm of the loss by no more ends the search."""
_OVERFLOWN = 1e6
"""The logarithm of the loss where the noise has grown beyond all numbers."""


@lru_cache(maxsize=64)
def optimal_bands(bands: int, rounds: int) -> tuple[float, ...]:
    """The coefficients (c_0 = 1, c_1, ...) of at most `bands` bands for a run of `rounds`.

    Multiples of `UNIT` in [0, 1], and never noisier than the square root's. There are
    min(bands, rounds) of them: those beyond the last round would add to |c| and to nothing else.
    Raises `ValueError` for fewer than one band or round.
    """
    if bands < 1 or rounds < 1:
        raise ValueError(
            f"there are {bands} bands and {rounds} rounds; expected at least one of each"
        )
    root = square_root(min(bands, rounds))
    solved = _searched(root[1:], rounds)
    best = min((_rounded(solved), _rounded(root[1:])), key=lambda free: loss(free, rounds)[0])
    return (1.0, *best.tolist())


def loss(free: Numbers, rounds: int) -> tuple[float, Numbers]:
    """log(|c|^2 |A C^-1|_F^2) for c = (1, *free), and its gradient `[bands - 1]` by `free`."""
    c = np.concatenate([[1.0], free])
    weights = rows_below(rounds)
    with np.errstate(over="ignore", invalid="ignore"):
        w = inverse_sums(c, rounds)
        error = float(weights @ w**2)
        adjoint = lfilter([1.0], c, (2 * weights * w / error)[::-1])[::-1]
    if not (math.isfinite(error) and np.isfinite(adjoint).all()):
        return _OVERFLOWN, np.zeros_like(free)
    lagged = correlate(adjoint, w)[rounds : rounds + len(free)]
    norm = float(c @ c)
    return math.log(norm) + math.log(error), 2 * free / norm - lagged


def _searched(start: Numbers, rounds: int) -> Numbers:
    """The free coefficients at which L-BFGS stays, restarted without its memory of curvature."""
    at, least = start, math.inf
    for _ in range(_RESTARTS if len(start) else 0):
        result = minimize(
            loss,
            at,
            args=(rounds,),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, _LARGEST)] * len(start),
            options={"maxiter": _STEPS, "maxfun": 2 * _STEPS, "ftol": 1e-12, "gtol": 1e-8},
        )
        at = np.asarray(result.x)
        if least - result.fun <= _STAYS:
            break
        least = float(result.fun)
    return at


def _rounded(free: Numbers) -> Numbers:
    return np.asarray(np.round(free / UNIT) * UNIT)
