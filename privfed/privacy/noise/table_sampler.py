"""Integer noise by inverting a table of its distribution, exact to 2^-192.

A draw compares 64 random bits with the leading 64 of the distribution function; where they tie,
128 further bits decide. So a table costs no accuracy (64 bits alone would be off by 5e-16 per
coordinate, which adds up over d n T draws), and what is left out, tails beyond the table and the
last of 192 bits, is `total_variation`, which is charged to delta.

Tables are computed in whole numbers: the discrete Gaussian's weights exp(-k^2 / (2 s^2)) by their
ratios, Skellam's e^-mu I_k(mu) by Miller's backward recurrence, from far beyond the tail.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from privfed.privacy.integers import Integers
from privfed.streams import Keys, Words

_BITS = 192
_WORK = 512
"""Bits of the weights."""
_GUIDE = 16
"""Leading bits that a draw is looked up by first."""
LARGEST_DEVIATION = 5000.0
"""The largest deviation, in steps: a table stays near a hundred thousand entries."""
TOTAL_VARIATION = 1e-40
"""The farthest that a draw from any table here is from its distribution: each is checked for it."""
_REACH = 15.0
"""Deviations that a table reaches to: beyond them lie less than 1e-49 of a Gaussian."""


@dataclass(frozen=True, eq=False)
class DistributionTable:
    """The distribution function of whole numbers: P[X <= first + j], in 192 bits, for each j.

    `words` `[m]` are the leading 64 bits, `exact` all of them. `total_variation` bounds how far a
    draw is from the true distribution.
    """

    first: int
    words: Words
    exact: list[int]
    total_variation: float
    guide: Integers = field(init=False)

    def __post_init__(self) -> None:
        edges = np.arange(1 << _GUIDE, dtype=np.uint64) << np.uint64(64 - _GUIDE)
        guide = np.searchsorted(self.words, edges, side="left")
        object.__setattr__(self, "guide", np.append(guide, len(self.words)))

    def draw(self, keys: Keys, count: int) -> Integers:
        """`count` independent draws."""
        bits = keys.bits(count)
        bucket = (bits >> np.uint64(64 - _GUIDE)).astype(np.int64)
        place = self.guide[bucket]
        unsure = np.flatnonzero(self.guide[bucket + 1] != place)  # an entry lies in this bucket
        place[unsure] = np.searchsorted(self.words, bits[unsure], side="right")
        tied = unsure[bits[unsure] == self.words[np.maximum(place[unsure] - 1, 0)]]
        for at in tied.tolist():
            place[at] = self._untied(int(bits[at]), keys.derived(at.to_bytes(8, "little")))
        return np.minimum(place, len(self.words) - 1) + self.first

    def _untied(self, word: int, keys: Keys) -> int:
        """The place of a draw whose leading 64 bits are also an entry's, by 128 more."""
        low, high = (int(part) for part in keys.bits(2))
        bits = (word << 128) + (low << 64) + high
        place = int(np.searchsorted(self.words, np.uint64(word), side="left"))
        while place < len(self.exact) - 1 and self.exact[place] <= bits:
            place += 1
        return place


@functools.lru_cache(maxsize=128)
def discrete_gaussian_table(deviation: float) -> DistributionTable:
    """P[X = k] ~ exp(-k^2 / (2 deviation^2)). Raises `ValueError` for a deviation beyond 5000."""
    import mpmath  # whoever draws none of it starts without

    most = reach(deviation)
    with mpmath.workprec(_WORK + 64):
        step = mpmath.exp(-1 / (2 * mpmath.mpf(deviation) ** 2))
        ratio, square = (int(mpmath.floor(mpmath.ldexp(x, _WORK))) for x in (step, step**2))
    weights = [1 << _WORK]
    for _ in range(most):  # w_{k+1} = w_k r^{2k+1}
        weights.append((weights[-1] * ratio) >> _WORK)
        ratio = (ratio * square) >> _WORK
    return _table(weights, most)


@functools.lru_cache(maxsize=1024)
def skellam_table(variance: float) -> DistributionTable:
    """P[X = k] = e^-mu I_k(mu), mu = variance: a difference of two Poissons of mean mu / 2."""
    deviation = math.sqrt(variance)
    most = reach(deviation)
    start = 2 * most + 100
    mean = Fraction(variance)
    above, current = 0, 1 << 64
    weights = [0] * (start + 1)
    for k in range(start, -1, -1):
        weights[k] = current
        # I_{k-1} = I_{k+1} + (2 k / mu) I_k
        above, current = current, above + 2 * k * current * mean.denominator // mean.numerator
    return _table(weights, most)


def reach(deviation: float) -> int:
    """How far a table goes from zero. Raises `ValueError` for a deviation too large for a table.

    Skellam's tails are Poisson's, heavier than a Gaussian's where the deviation is small.
    """
    if not 0.0 < deviation <= LARGEST_DEVIATION:
        raise ValueError(
            f"a deviation of {deviation!r} steps; expected at most 5000: a coarser grid"
        )
    return math.ceil(_REACH * deviation + 100)


def _table(weights: list[int], reach: int) -> DistributionTable:
    """The table up to `reach` of a symmetric distribution with `weights` of 0, 1, 2, ...

    Raises `ValueError` where what is left out is more than `TOTAL_VARIATION`.
    """
    total = weights[0] + 2 * sum(weights[1:])
    tail = 2 * sum(weights[reach + 1 :])
    both = [*weights[reach:0:-1], *weights[: reach + 1]]
    exact, cumulated = [], tail // 2
    for weight in both:
        cumulated += weight
        exact.append((cumulated << _BITS) // total)
    exact[-1] = 1 << _BITS  # the last entry takes what is beyond
    words = np.array([min(below >> (_BITS - 64), 2**64 - 1) for below in exact], dtype=np.uint64)
    beyond = float(Fraction(tail, total)) if tail else 1e-49
    off = beyond + len(both) * 2.0**-_BITS
    if off > TOTAL_VARIATION:
        raise ValueError(f"a table that is off by {off:g}; expected at most {TOTAL_VARIATION:g}")
    return DistributionTable(-reach, words, exact, off)
