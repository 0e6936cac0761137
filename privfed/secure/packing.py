"""Rows of whole numbers modulo 2^bits, and the bytes in which they travel.

*The bytes of a row* of d numbers x_0, ..., x_{d-1}, each of b bits. Let W be 16, 32 or 64, the
least that is not below b, and g = W / gcd(W, b), so that g numbers fill m = g b / W words of W bits
exactly. The first g q numbers, q = floor(d / g), are g lanes of q numbers one after another, and
column j has number j of each lane: n_j = sum_{i < g} x_{i q + j} 2^{i b}, below 2^{m W}. Of it
come m lanes of q words: word j of lane k is floor(n_j / 2^{k W}) mod 2^W, in W / 8 bytes. After
these lanes, one after another, comes what is left over: the number
sum_i x_{g q + i} 2^{i b}, in ceil((d - g q) b / 8) bytes. All is little-endian. A row has
ceil(d b / 8) bytes in all; bits at its end that are no number's are zero.

So neighbours in memory are shifted alike, a lane at a time. What is worked on at once are stretches
of lanes that stay in the processor's cache, of any length: the bytes do not depend on it.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.unsignedinteger]
Bytes = bytes | memoryview
"""Bytes that are somebody's, or lie in somebody else's message."""
_STRETCH = 1 << 17
"""Bytes of a lane that are worked on at once; where there are fewer than eight lanes, more."""


class _Piece(NamedTuple):
    """Those bits of a lane's numbers that lie in one lane of words, and how they come there."""

    lane: int
    word: int
    first: bool
    """Whether it is the first piece of its lane."""
    opens: bool
    """Whether it is the first piece in its lane of words."""
    shift: Words
    """Of no dimension: a scalar would become such an array in every call, a third of its time."""
    into: np.ufunc
    """How a number is shifted into the word, by `shift`; `out` takes it back."""
    out: np.ufunc


@functools.lru_cache(maxsize=64)
def _pieces(bits: int, word: np.dtype[np.unsignedinteger]) -> tuple[_Piece, ...]:
    """Where each lane's numbers of `bits` bits lie in words, by lanes and then by words."""
    left, right, width = np.left_shift, np.right_shift, 8 * word.itemsize
    pieces = []
    for lane in range(width // math.gcd(width, bits)):
        at, shift = divmod(lane * bits, width)
        pieces.append(_Piece(lane, at, True, not shift, np.array(shift, word), left, right))
        if shift + bits > width:
            over = np.array(width - shift, word)
            pieces.append(_Piece(lane, at + 1, False, True, over, right, left))
    return tuple(pieces)


class PackedRows:
    """Rows of `length` numbers of `bits` bits, from 8 to 64, in words and in bytes.

    Words have 2, 4 or 8 bytes, little-endian: the fewest that hold `bits`. Sums are modulo 2^16,
    2^32 or 2^64, and so modulo 2^bits.
    """

    def __init__(self, length: int, bits: int) -> None:
        self.length, self.bits = length, bits
        self.word = np.dtype("<u2" if bits <= 16 else "<u4" if bits <= 32 else "<u8")
        self._pieces = _pieces(bits, self.word)
        self._lanes = self._pieces[-1].lane + 1
        self._columns = length // self._lanes
        self._in_lanes = self._lanes * self._columns
        self._stretch = max(1, 8 // self._lanes) * _STRETCH // self.word.itemsize
        self._mask = np.array(2**bits - 1, self.word)

    @property
    def size(self) -> int:
        """Bytes of a packed row."""
        return -(-self.length * self.bits // 8)

    def zeros(self) -> Words:
        """A sum of nothing yet `[length]`."""
        return np.zeros(self.length, self.word)

    def reduce(self, words: Words) -> Words:
        """`words` modulo 2^bits."""
        return words & self._mask

    def pack(self, words: Words) -> memoryview:
        """The bytes of `words` `[length]` modulo 2^bits."""
        data = np.empty(self.size, np.uint8).data
        packed = self._packed_lanes(data)
        lanes = words[: self._in_lanes].reshape(self._lanes, -1)
        for start in range(0, self._columns, self._stretch):
            at = slice(start, start + self._stretch)
            self._pack(lanes[:, at], packed[:, at])
        left = self.reduce(words[self._in_lanes :]).tolist()
        rest = sum(number << (at * self.bits) for at, number in enumerate(left))
        data[packed.nbytes :] = rest.to_bytes(self.size - packed.nbytes, "little")
        return data.toreadonly()

    def add(self, total: Words, data: Bytes) -> bool:
        """Add a packed row to `total` `[length]` in place: right modulo 2^bits, no more is reduced.

        False, and nothing has changed, for bytes of another length, or bits that are no number's.
        """
        if len(data) != self.size:
            return False
        packed = self._packed_lanes(data)
        rest = int.from_bytes(data[packed.nbytes :], "little")
        left = self.length - self._in_lanes
        if rest >> (left * self.bits):
            return False
        lanes = total[: self._in_lanes].reshape(self._lanes, -1)
        for start in range(0, self._columns, self._stretch):
            at = slice(start, start + self._stretch)
            self._add(lanes[:, at], packed[:, at])
        numbers = [(rest >> (at * self.bits)) & int(self._mask) for at in range(left)]
        total[self._in_lanes :] += np.array(numbers, self.word)
        return True

    def unpack(self, data: Bytes) -> Words | None:
        """The words of a packed row; None for another length, or bits that are no number's."""
        words = self.zeros()
        return self.reduce(words) if self.add(words, data) else None

    def _packed_lanes(self, data: Bytes) -> Words:
        """The lanes of words in the bytes of a row, without a copy."""
        words = self._pieces[-1].word + 1
        count = words * self._columns
        return np.frombuffer(data, self.word, count).reshape(words, self._columns)

    def _pack(self, lanes: Words, packed: Words) -> None:
        """Stretches of `lanes` into those of lanes of words."""
        numbers, moved = np.empty((2, lanes.shape[1]), self.word)
        rows, words, mask = list(lanes), list(packed), self._mask
        for piece in self._pieces:
            word = words[piece.word]
            if piece.first:
                np.bitwise_and(rows[piece.lane], mask, word if piece.opens else numbers)
            if piece.first and piece.opens:
                continue
            if piece.opens:
                piece.into(numbers, piece.shift, word)
            else:
                piece.into(numbers, piece.shift, moved)
                np.bitwise_or(word, moved, word)

    def _add(self, lanes: Words, packed: Words) -> None:
        """Stretches of lanes of words onto those of `lanes`; bits above a number's are left in."""
        moved = np.empty(lanes.shape[1], self.word)
        rows, words = list(lanes), list(packed)
        for piece in self._pieces:
            row = rows[piece.lane]
            if piece.opens:
                word = words[piece.word]
                if not word.flags.aligned:  # else each piece would be, in small steps
                    word = word.copy()
            if piece.first and piece.opens:
                np.add(row, word, row)
                continue
            piece.out(word, piece.shift, moved)
            np.add(row, moved, row)
