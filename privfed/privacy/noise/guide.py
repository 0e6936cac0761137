"""Most draws of a table by one lookup: their place among its entries, by 32 bits of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privfed.privacy.noise.uniforms import LEADING, Leading

_BUCKETS = 18
"""Leading bits that a draw is looked up by: the lookups stay in the processor's second cache."""
_BELOW = LEADING - _BUCKETS
"""The bits below these, which are compared with the one entry that a bucket may hold."""
_OFFSET = 1 << (31 - _BELOW - 1)
"""What is added to draws, so that none is negative, and the highest bit is free."""
_CROWDED = 1 << 31
"""The highest bit: it stands for a bucket of several entries."""
_LAST = (1 << _BELOW) - 1
_MARKS = np.uint32(_CROWDED + _LAST)
"""The bits that tell whether a draw is sure: with these alone it is below `_LAST`."""


class Scratch:
    """Room for the draws of a block of up to `size`, used again for the next."""

    def __init__(self, size: int) -> None:
        self.buckets, self.drawn, self.marks = np.empty((3, size), dtype=np.uint32)
        self.unsure = np.empty(size, dtype=np.bool_)


@dataclass(frozen=True, eq=False)
class Guide:
    """By the leading 18 bits b of a draw, its bucket, where it falls, and what its 14 others add.

    To the draw's 32 bits `added` `[2^18]` adds, modulo 2^32, v 2^14 + (2^14 - 1 - e) - b 2^14 for
    a bucket that begins with a draw of v (from `_OFFSET` on), and has one entry, of lower bits e;
    without an entry, v 2^14 - b 2^14. Of lower bits r this makes 2^14 times the draw, which is v
    or, beyond r = e, v + 1; and a rest, whose bits are all ones where r = e, which further bits
    have to decide.
    """

    added: Leading

    def draw(self, bits: Leading, scratch: Scratch) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Draws `[n]` by their leading `bits` `[n]`, and the places of those that are not sure."""
        size = len(bits)
        buckets, drawn, marks = (
            each[:size] for each in (scratch.buckets, scratch.drawn, scratch.marks)
        )
        np.right_shift(bits, np.uint32(_BELOW), out=buckets)
        np.take(self.added, buckets, out=drawn, mode="wrap")  # none is beyond: quicker than a check
        np.add(drawn, bits, out=drawn)
        np.bitwise_and(drawn, _MARKS, out=marks)
        np.greater_equal(marks, np.uint32(_LAST), out=scratch.unsure[:size])
        np.right_shift(drawn, np.uint32(_BELOW), out=drawn)
        np.subtract(drawn, np.uint32(_OFFSET), out=drawn)
        return drawn.view(np.int32), np.flatnonzero(scratch.unsure[:size])


def guide(words: Leading, first: int) -> Guide:
    """The guide of a table whose entries begin with `words` `[m]`, in order, from a draw `first`.

    Draws beyond 16 bits and a sign are left to a search, as those of crowded buckets.
    """
    bucket = np.arange(1 << _BUCKETS, dtype=np.int64)
    begins = np.searchsorted(words >> np.uint32(_BELOW), np.arange((1 << _BUCKETS) + 1))
    draws, entries = begins[:-1] + first + _OFFSET, np.diff(begins)
    added = (draws - bucket) << _BELOW
    single = np.flatnonzero(entries == 1)
    added[single] += _LAST - (words[begins[single]] & np.uint32(_LAST)).astype(np.int64)
    searched = np.flatnonzero((entries > 1) | (draws < 0) | (draws >= 2 * _OFFSET - 1))
    added[searched] = _CROWDED - (searched << _BELOW)
    return Guide((added % 2**LEADING).astype(np.uint32))
