"""The range of a sample's numbers, rounded outwards and without outliers."""

from __future__ import annotations

import math

import numpy as np

from privfed.data.declaring.kinds import ENOUGH_ROWS

LARGEST = 1e300
"""Numbers beyond it on either side are taken for it."""
_FAR = 3.0
"""A number beyond the others by so many times their range is an outlier."""


def rounded_range(numbers: np.ndarray) -> tuple[float, float]:
    """The range of finite `numbers`, rounded outwards to two digits of its width.

    Up to one in 200 at each end (of 20 or more: one at least) are left beyond, where they lie
    farther from the rest than three times its range.
    """
    ordered = np.sort(numbers.clip(-LARGEST, LARGEST))
    low, high = float(ordered[0]), float(ordered[-1])
    few = max(1, len(ordered) // 200) if len(ordered) >= ENOUGH_ROWS else 0
    inner_low, inner_high = float(ordered[few]), float(ordered[len(ordered) - 1 - few])
    far = _FAR * (inner_high - inner_low)
    if far:
        low = inner_low if inner_low - low > far else low
        high = inner_high if high - inner_high > far else high
    return _outwards(low, high)


def _outwards(low: float, high: float) -> tuple[float, float]:
    if low == high:
        margin = max(1.0, abs(low) * 1e-6)
        return low - margin, high + margin
    unit = 10.0 ** max(math.floor(math.log10(high - low)) - 1, -300)
    start = without_binary_digits(math.floor(low / unit) * unit)
    end = without_binary_digits(math.ceil(high / unit) * unit)
    return min(start, low), max(end, high)


def without_binary_digits(value: float) -> float:
    """`value` to 12 digits, without those that binary fractions bring."""
    return float(f"{value:.12g}")
