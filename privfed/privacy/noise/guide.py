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
_MASK = np.int32(2**_BELOW - 1)
_CROWDED = np.int32(-(2**31))
"""What stands for a bucket of several entries: whatever is added stays below any draw."""


@dataclass(frozen=True, eq=False)
class Guide:
    """By the leading 18 bits of a draw, its bucket, where it falls, and what its 14 others add.

    `added` `[2^18]` is v 2^14 + (2^14 - e) for a bucket that begins with a draw of v, and has one
    entry, of lower bits e; v 2^14 for one without an entry. To it the lower bits r of a draw are
    added: the sum is 2^14 times the draw, v or, from r = e on, v + 1, and a rest that is 0 where
    r = e, which further bits have to decide.
    """

    added: NDArray[np.int32]

    def draw(self, bits: Leading) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Draws `[n]` by their leading `bits` `[n]`, and the places of those that are not sure."""
        drawn = np.empty(len(bits), dtype=np.int32)
        np.take(self.added, bits >> np.uint32(_BELOW), out=drawn, mode="wrap")  # none is checked
        drawn += bits.view(np.int32) & _MASK
        unsure = np.flatnonzero(((drawn & _MASK) == 0) | (drawn <= _CROWDED + _MASK))
        drawn >>= _BELOW
        return drawn, unsure


def guide(words: Leading, first: int) -> Guide:
    """The guide of a table whose entries begin with `words` `[m]`, in order, from a draw `first`.

    Raises `ValueError` for draws beyond 17 bits.
    """
    if max(abs(first), abs(first + len(words))) >= 2 ** (31 - _BELOW) - 1:
        raise ValueError("draws that do not fit 17 bits and a sign")
    bucket, lower = words >> np.uint32(_BELOW), words.view(np.int32) & _MASK
    begins = np.searchsorted(bucket, np.arange((1 << _BUCKETS) + 1, dtype=np.uint32))
    added = ((begins[:-1] + first) << _BELOW).astype(np.int32)
    entries = np.diff(begins)
    single = np.flatnonzero(entries == 1)
    added[single] += np.int32(1 << _BELOW) - lower[begins[single]]
    added[entries > 1] = _CROWDED
    return Guide(added)
