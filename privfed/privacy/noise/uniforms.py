"""Uniform numbers of 192 bits, of which all but the leading 32 are made when asked for."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from privfed.streams import Keys, Words

BITS = 192
LEADING = 32
REST = BITS - LEADING

Leading = NDArray[np.uint32]
"""The leading 32 bits of numbers `[n]`."""


class Uniforms(Protocol):
    """A sequence of independent uniform numbers, whose order is that of draws."""

    def leading(self, count: int) -> Leading:
        """The leading bits `[count]` of the next numbers."""
        ...

    def rest(self, place: int) -> int:
        """The 160 bits that follow in the number at `place` of the sequence; asked for once."""
        ...


class FreshUniforms:
    """Numbers of the operating system's CSPRNG, by `keys` without a seed."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def leading(self, count: int) -> Leading:
        return self._keys.bits((count + 1) // 2).view(np.uint32)[:count]

    def rest(self, place: int) -> int:
        return int.from_bytes(self._keys.bits(BITS // 64).tobytes(), "little") >> LEADING


class SeededUniforms:
    """`count` numbers of seeded `keys`: 64 bits of one draw, and 128 of keys for its place."""

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
    """`count` uniform numbers by `keys`."""
    return FreshUniforms(keys) if keys.seed is None else SeededUniforms(keys, count)
