"""Searches for numbers that fit, by trying them: those that `accounting.calibration` has not."""

from __future__ import annotations

from collections.abc import Callable

_SMALLEST_RATE = 1e-9


def large_scanned(fits: Callable[[int], bool], most: int) -> int:
    """A large count up to `most` that fits: small ones need not where larger do; 0: none was found.

    (Small expected cohorts are cut more often.) Not proved to be the largest: counts a fifth apart
    are tried, from above, then those between.
    """
    above = most + 1
    tried = most
    while tried >= 1:
        if fits(tried):
            while above - tried > 1:
                middle = (tried + above) // 2
                tried, above = (middle, above) if fits(middle) else (tried, middle)
            return tried
        above, tried = tried, min(tried - 1, int(tried / 1.2))
    return 0


def largest_rate(fits: Callable[[float], bool]) -> float | None:
    """The largest sampling rate that fits, to four digits; None where none above 1e-9 does."""
    low = 1.0
    while not fits(low):
        low /= 4
        if low < _SMALLEST_RATE:
            return None
    high = min(4 * low, 1.0)
    while high - low > 1e-4 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
