"""The noise on prefix sums that a factorisation leaves, and the square root of the prefix sums.

Releases are x_t + Y_t with C Y = Z, and Z has independent rows. C `[T, T]` is lower-triangular
Toeplitz; its column from the diagonal downwards is given by its coefficients c `[bands]`, zero
after them. A model that sums releases has the noise A C^-1 Z, with A the lower-triangular ones.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

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
