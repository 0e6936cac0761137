"""Random rotations, which spread a row evenly over its coordinates: H diag(+-1) / sqrt(d).

H is the Walsh-Hadamard matrix of a power of two, to which rows are padded with zeros. The signs are
public and fresh each round. A rotation preserves norms, and is inverted exactly up to rounding in
float64 (Kairouz, Liu & Steinke 2021, section 4.2; Suresh et al. 2017).
"""

from __future__ import annotations

import functools
import math

import numpy as np

from privfed.core.deferred import Tensor, torch
from privfed.core.streams import Keys
from privfed.privacy.mechanism import BoundedRows

_FACTOR = 16
"""Size of the matrices into which H is factored; the last one may be twice as large."""
_ROTATION_BLOCK = 1 << 17
"""Number of values that are rotated at once (a few rows), which fit the cache."""
_SHRINK = 1 - 2.0**-40
"""Factor on rotated rows that compensates the float64 rounding of a norm (fewer than 40 consecutive
additions)."""


def padded(length: int) -> int:
    """Returns the least power of two that is at least `length`, to which rows are padded."""
    return 1 << max(length - 1, 0).bit_length()


def signs(keys: Keys, length: int) -> Tensor:
    """Returns the public signs +-1 `[padded(length)]` of a rotation, float64."""
    size = padded(length)
    words = keys.bits(-(-size // 64))
    bits = np.unpackbits(words.view(np.uint8))[:size]
    return torch.from_numpy(1.0 - 2.0 * bits.astype(np.float64))


def rotate(bounded: BoundedRows, flips: Tensor) -> BoundedRows:
    """Rotates rows `[c, m]` with the signs `flips`: rows `[c, padded(m)]`, float64.

    Guarantee: no row's norm increases (all shrink by 2^-40), so the bound remains valid.
    """
    rows, shrunk = bounded.rows, flips.to(bounded.rows.device) * _SHRINK
    turned = shrunk.new_empty(len(rows), len(flips))
    few, length = max(1, _ROTATION_BLOCK // len(flips)), rows.shape[1]
    for start in range(0, len(rows), few):
        wide = turned[start : start + few]
        wide[:, :length] = rows[start : start + few]
        wide[:, :length] *= shrunk[:length]
        wide[:, length:] = 0.0
        wide.copy_(hadamard(wide))
    return BoundedRows(turned, bounded.bound)


def unrotate(total: Tensor, flips: Tensor, length: int) -> Tensor:
    """Returns the sum `[length]` of rows whose rotated sum is `total` `[padded(length)]`."""
    back = hadamard(total.double()[None])[0] * flips.to(total.device) / _SHRINK
    return back[:length]


def hadamard(rows: Tensor) -> Tensor:
    """Returns H x / sqrt(d) for each x of `rows` `[c, d]`, d a power of two; it inverts itself."""
    left, turned = rows.shape[1], rows.t()
    while left > 1:  # move the first digit of the index last, and apply H
        factor = left if left <= 2 * _FACTOR else _FACTOR
        turned = turned.reshape(factor, -1).t() @ _matrix(factor).to(rows)
        left //= factor
    return turned.reshape(rows.shape)


@functools.lru_cache(maxsize=8)
def _matrix(size: int) -> Tensor:
    """Returns H / sqrt(size) `[size, size]`."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / math.sqrt(size)
