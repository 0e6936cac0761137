"""Integer noise by inversion of a tabulated distribution, exact to 2^-192.

A draw is the position of a uniform number of 192 bits among the values of the distribution
function. The number's leading 32 bits suffice, unless they equal those of a value, which is rare:
then the other 160 bits are compared. Comparing few bits therefore costs no accuracy (64 bits alone
would be off by 5e-16 per coordinate, which adds up over d n T draws). The remaining error, from
tails beyond the table and from the last of 192 bits, is `total_variation`, which is charged to
delta.

Tables are computed in integers: the discrete Gaussian's weights exp(-k^2 / (2 s^2)) by their
ratios, Skellam's e^-mu I_k(mu) by Miller's backward recurrence, from far beyond the tail.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from privfed.core.streams import Keys, Words
from privfed.privacy.integers import Integers

BITS = 192
LEADING = 32
REST = BITS - LEADING

Leading = NDArray[np.uint32]
"""Leading 32 bits of numbers `[n]`."""


class Uniforms(Protocol):
    """A sequence of independent uniform numbers of 192 bits, in the order of draws."""

    def leading(self, count: int) -> Leading:
        """Returns the leading 32 bits of the next `count` numbers."""

    def rest(self, place: int) -> int:
        """Returns the last 160 bits of the number at index `place`.

        Call it at most once per index: another call may return other bits.
        """


class FreshUniforms:
    """Uniform 192-bit numbers from `Keys` whose `seed` is None, which cannot be repeated.

    They come from the operating system's CSPRNG.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def leading(self, count: int) -> Leading:
        return self._keys.bits((count + 1) // 2).view(np.uint32)[:count]

    def rest(self, place: int) -> int:
        return int.from_bytes(self._keys.bits(BITS // 64).tobytes(), "little") >> LEADING


class SeededUniforms:
    """`count` uniform 192-bit numbers from seeded `keys`.

    The first 64 bits of all numbers are one draw; the other 128 bits use keys derived from the
    number's index.
    """

    def __init__(self, keys: Keys, count: int) -> None:
        self._keys, self._words, self._next = keys, keys.bits(count), 0

    def leading(self, count: int) -> Leading:
        words: Words = self._words[self._next : self._next + count]
        self._next += count
        return (words >> np.uint64(LEADING)).astype(np.uint32)

    def rest(self, place: int) -> int:
        low, high = (int(word) for word in self._keys.derived(place.to_bytes(8, "little")).bits(2))
        below = int(self._words[place]) & ((1 << LEADING) - 1)
        return (below << 128) + (low << 64) + high


def uniforms_of(keys: Keys, count: int) -> Uniforms:
    """Returns `count` uniform 192-bit numbers from `keys`."""
    return FreshUniforms(keys) if keys.seed is None else SeededUniforms(keys, count)


_BUCKETS = 18
"""Number of leading bits that index the lookup table, which fits the processor's second cache."""
_BELOW = LEADING - _BUCKETS
"""Number of the following bits, which are compared with the single entry of a bucket."""
_OFFSET = 1 << (31 - _BELOW - 1)
"""Offset of draws, so that none is negative, and the highest bit is free."""
_CROWDED = 1 << 31
"""The highest bit, which marks a bucket of several entries."""
_LAST = (1 << _BELOW) - 1
_MARKS = np.uint32(_CROWDED + _LAST)
"""Bits that show whether a draw is certain: it is certain if they are below `_LAST`."""


_IN_ONE_BUCKET = 12
"""Number of entries of a bucket that are compared one after another."""


class Scratch:
    """Buffers for a block of up to `size` draws, reused for the next block."""

    def __init__(self, size: int) -> None:
        self.buckets, self.drawn, self.marks = np.empty((3, size), dtype=np.uint32)
        self.unsure = np.empty(size, dtype=np.bool_)


@dataclass(frozen=True, eq=False)
class Guide:
    """Lookup table by the leading 18 bits b of a draw: its value, and a comparison term.

    `added` `[2^18]` is added to the draw's 32 bits, modulo 2^32. For a bucket that begins with a
    draw of v (from `_OFFSET` on) and has one entry, of lower bits e, `added` is
    v 2^14 + (2^14 - 1 - e) - b 2^14; for a bucket without an entry, v 2^14 - b 2^14. With lower
    bits r the sum is 2^14 times the draw, which is v or, beyond r = e, v + 1, plus a rest. The bits
    of the rest are all ones if r = e, and then further bits decide.
    """

    added: Leading
    begins: NDArray[np.int32]
    """Number of entries `[2^18]` below each bucket."""

    def draw(self, bits: Leading, scratch: Scratch) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns draws `[n]` from leading `bits` `[n]`, and the indices that need more bits.

        The draws are stored in `scratch`; those at the returned indices are not valid.
        """
        size = len(bits)
        buckets, drawn, marks = (
            each[:size] for each in (scratch.buckets, scratch.drawn, scratch.marks)
        )
        np.right_shift(bits, np.uint32(_BELOW), out=buckets)
        np.take(self.added, buckets, out=drawn, mode="wrap")  # faster than a range check
        np.add(drawn, bits, out=drawn)
        np.bitwise_and(drawn, _MARKS, out=marks)
        np.greater_equal(marks, np.uint32(_LAST), out=scratch.unsure[:size])
        np.right_shift(drawn, np.uint32(_BELOW), out=drawn)
        np.subtract(drawn, np.uint32(_OFFSET), out=drawn)
        return drawn.view(np.int32), np.flatnonzero(scratch.unsure[:size])

    def entries_up_to(self, bits: Leading, words: Leading) -> NDArray[np.int64]:
        """Returns, for each of `bits` `[n]`, the number of entries of `words` that are at most it.

        `words` `[m]` are the leading bits of the table's entries, in ascending order. Few of them
        share a bucket with a draw, except in the tails, where a binary search is faster.
        """
        count: NDArray[np.int64] = self.begins[bits >> np.uint32(_BELOW)].astype(np.int64)
        left = np.arange(len(bits))
        for _ in range(_IN_ONE_BUCKET):
            left = left[words[np.minimum(count[left], len(words) - 1)] <= bits[left]]
            if not len(left):
                return count
            count[left] += 1
        count[left] = np.searchsorted(words, bits[left], side="right")
        return count


def guide(words: Leading, first: int) -> Guide:
    """Returns the guide of a table with leading bits `words` `[m]` and the least draw `first`.

    Buckets with several entries, or with draws beyond 16 bits and a sign, are marked in `added`:
    `Guide.draw` returns the indices of their draws, which a search finds (`Guide.entries_up_to`).
    """
    bucket = np.arange(1 << _BUCKETS, dtype=np.int64)
    begins = np.searchsorted(words >> np.uint32(_BELOW), np.arange((1 << _BUCKETS) + 1))
    draws, entries = begins[:-1] + first + _OFFSET, np.diff(begins)
    added = (draws - bucket) << _BELOW
    single = np.flatnonzero(entries == 1)
    added[single] += _LAST - (words[begins[single]] & np.uint32(_LAST)).astype(np.int64)
    searched = np.flatnonzero((entries > 1) | (draws < 0) | (draws >= 2 * _OFFSET - 1))
    added[searched] = _CROWDED - (searched << _BELOW)
    return Guide((added % 2**LEADING).astype(np.uint32), begins[:-1].astype(np.int32))


_WORK = 512
"""Bits of the weights."""
_BLOCK = 1 << 16
"""Number of draws per block, which fits the processor's cache."""
_FEW = 1 << 14
"""Largest number of draws for which no guide is made."""
LARGEST_STD = 20_000.0
"""Largest standard deviation, in steps: a table has about six hundred thousand entries at most."""
TOTAL_VARIATION = 1e-40
"""Largest total variation distance of a draw from its
distribution; every table is checked for it."""
_REACH = 15.0
"""Number of standard deviations that a table covers: a Gaussian has less than 1e-49 beyond them."""


@dataclass(frozen=True, eq=False)
class DistributionTable:
    """The distribution function of integers: P[X <= first + j], in 192 bits, for each j.

    `exact` holds the values, the last of which is one, and `words` `[m]` the leading 32 bits of
    each. `total_variation` bounds the distance of a draw from the true distribution.
    """

    first: int
    exact: list[int]
    total_variation: float
    words: Leading = field(init=False)

    def __post_init__(self) -> None:
        words = [min(below >> REST, 2**LEADING - 1) for below in self.exact]
        object.__setattr__(self, "words", np.array(words, dtype=np.uint32))

    def draw(self, keys: Keys, count: int) -> Integers:
        """Returns `count` independent draws."""
        drawn = np.empty(count, dtype=np.int64)
        for part, block in self.blocks(uniforms_of(keys, count), count):
            drawn[part] = block
        return drawn

    def blocks(self, source: Uniforms, count: int) -> Iterator[tuple[slice, NDArray[np.int32]]]:
        """Yields `count` draws from the numbers of `source` in blocks: a slice and its draws.

        A block is valid until the next one is requested.
        """
        guided = _guided(self) if count > _FEW else None
        scratch = Scratch(min(count, _BLOCK))
        for start in range(0, count, _BLOCK):
            size = min(_BLOCK, count - start)
            drawn = self._block(source, start, size, guided, scratch)
            yield slice(start, start + size), drawn

    def _block(
        self, source: Uniforms, start: int, size: int, guided: Guide | None, scratch: Scratch
    ) -> NDArray[np.int32]:
        bits = source.leading(size)
        if guided:
            drawn, unsure = guided.draw(bits, scratch)
            open_bits = bits[unsure]
        else:
            drawn, unsure, open_bits = np.empty(size, np.int32), np.arange(size), bits
        if guided:
            above = guided.entries_up_to(open_bits, self.words)
        else:
            above = np.searchsorted(self.words, open_bits, side="right")
        drawn[unsure] = above + self.first
        tied = self.words[np.maximum(above - 1, 0)] == open_bits
        for at in unsure[tied].tolist():
            place = self._untied(int(bits[at]), source.rest(start + at))
            drawn[at] = place + self.first
        return drawn

    def _untied(self, leading: int, rest: int) -> int:
        """Returns the index of a draw whose leading bits equal those of an entry.

        `rest` are the other 160 bits of its uniform number.
        """
        number = (leading << REST) + rest
        place = int(np.searchsorted(self.words, np.uint32(leading), side="left"))
        while self.exact[place] <= number:  # the last is one, and above
            place += 1
        return place


@functools.lru_cache(maxsize=32)
def _guided(table: DistributionTable) -> Guide:
    """Returns the guide of a table (two megabytes)."""
    return guide(table.words, table.first)


@functools.lru_cache(maxsize=256)
def discrete_gaussian_table(variance: float | Fraction) -> DistributionTable:
    """Returns the table of P[X = k] ~ exp(-k^2 / (2 variance)).

    Raises `ValueError` unless the standard deviation is above 0 and at most 20,000.
    """
    import mpmath  # imported here, since other noise does not need it

    most, exact = reach(math.sqrt(variance)), Fraction(variance)
    with mpmath.workprec(_WORK + 64):
        step = mpmath.exp(-mpmath.mpf(exact.denominator) / (2 * exact.numerator))
        ratio, square = (int(mpmath.floor(mpmath.ldexp(x, _WORK))) for x in (step, step**2))
    weights = [1 << _WORK]
    for _ in range(most):  # w_{k+1} = w_k r^{2k+1}
        weights.append((weights[-1] * ratio) >> _WORK)
        ratio = (ratio * square) >> _WORK
    return _table(weights, most)


@functools.lru_cache(maxsize=1024)
def skellam_table(variance: float | Fraction) -> DistributionTable:
    """Returns the table of P[X = k] = e^-mu I_k(mu), mu = variance.

    Skellam noise is the difference of two independent Poisson variables of mean mu / 2. Raises
    `ValueError` unless the standard deviation is above 0 and at most 20,000.
    """
    std = math.sqrt(variance)
    most = reach(std)
    start = 2 * most + 100
    mean = Fraction(variance)
    above, current = 0, 1 << 64
    weights = [0] * (start + 1)
    for k in range(start, -1, -1):
        weights[k] = current
        # I_{k-1} = I_{k+1} + (2 k / mu) I_k
        above, current = (
            current,
            above + 2 * k * current * mean.denominator // mean.numerator,
        )
    return _table(weights, most)


def reach(std: float) -> int:
    """Returns the largest absolute value that a table covers, for a standard deviation `std`.

    Skellam's tails are Poisson's, heavier than a Gaussian's if the standard deviation is small.
    Raises `ValueError` unless the standard deviation is above 0 and at most 20,000.
    """
    if not 0.0 < std <= LARGEST_STD:
        raise ValueError(
            f"the standard deviation is {std!r} steps; expected at most "
            f"{LARGEST_STD:g}: use a coarser grid"
        )
    return math.ceil(_REACH * std + 100)


def _table(weights: list[int], reach: int) -> DistributionTable:
    """Returns the table of -`reach` to `reach`, inclusive, of a symmetric distribution.

    Its probabilities at 0, 1, 2, ... are proportional to `weights`.
    Raises `ValueError` if the error exceeds `TOTAL_VARIATION`.
    """
    total = weights[0] + 2 * sum(weights[1:])
    tail = 2 * sum(weights[reach + 1 :])
    both = [*weights[reach:0:-1], *weights[: reach + 1]]
    exact, cumulated = [], tail // 2
    for weight in both:
        cumulated += weight
        exact.append((cumulated << BITS) // total)
    exact[-1] = 1 << BITS  # the last entry includes the tail beyond
    beyond = float(Fraction(tail, total)) if tail else 1e-49
    off = beyond + len(both) * 2.0**-BITS
    if off > TOTAL_VARIATION:
        raise ValueError(
            f"the table has a total variation distance of {off:g}; expected at "
            f"most {TOTAL_VARIATION:g}"
        )
    return DistributionTable(-reach, exact, off)
