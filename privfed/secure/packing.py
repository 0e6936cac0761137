"""Rows of integers modulo 2^bits, and their serialised form.

*The bytes of a row* of d numbers x_0, ..., x_{d-1} of b bits each. Let W be the smallest of 16, 32
and 64 that is at least b, and g = W / gcd(W, b), so that g numbers fill m = g b / W words of W bits
exactly. The first g q numbers, q = floor(d / g), form g consecutive lanes of q numbers. Column j
contains number j of each lane: n_j = sum_{i < g} x_{i q + j} 2^{i b}, below 2^{m W}. The columns
give m lanes of q words: word j of lane k is floor(n_j / 2^{k W}) mod 2^W, in W / 8 bytes. After
these consecutive lanes follows the remainder: the number sum_i x_{g q + i} 2^{i b}, in ceil((d - g
q) b / 8) bytes. All numbers are little-endian. A row has ceil(d b / 8) bytes; unused bits at its
end are zero.

So adjacent numbers in memory are shifted alike, one lane at a time. Lanes are processed in
stretches that fit into the processor's cache; the bytes do not depend on their length.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.unsignedinteger]
Bytes = bytes | memoryview
"""Bytes, or a view into a longer message."""
_STRETCH = 1 << 17
"""Bytes of a lane that are processed at once; more if there are fewer than eight lanes."""


class _Piece(NamedTuple):
    """The bits that one lane of numbers and one lane of words have in common, and their shift."""

    lane: int
    word: int
    first: bool
    """Whether the piece is the first in its lane of numbers."""
    opens: bool
    """Whether the piece is the first in its lane of words."""
    shift: Words
    """A zero-dimensional array: converting a scalar in every call takes a third of the time."""
    into: np.ufunc
    """The shift of a number into the word, by `shift`; `out` is its inverse."""
    out: np.ufunc


@functools.lru_cache(maxsize=64)
def _pieces(bits: int, word: np.dtype[np.unsignedinteger]) -> tuple[_Piece, ...]:
    """Returns the pieces of all lanes for numbers of `bits` bits.

    They are ordered by lane of numbers, then by lane of words.
    """
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
    """Packs rows of `length` numbers of `bits` bits (8 to 64) into bytes and unpacks them.

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
        """The size of a packed row in bytes."""
        return -(-self.length * self.bits // 8)

    def zeros(self) -> Words:
        """Returns an unpacked sum: `length` words of zero."""
        return np.zeros(self.length, self.word)

    def reduce(self, words: Words) -> Words:
        """Returns `words` modulo 2^bits."""
        return words & self._mask

    def pack(self, words: Words) -> memoryview:
        """Returns the packed bytes of `words` `[length]` modulo 2^bits."""
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
        """Adds a packed row to `total` `[length]` in place.

        The result is correct modulo 2^bits, but not reduced.

        Returns:
          True; or False, without any change to `total`, if the length is wrong or unused bits are
          set.
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
        """Returns the words of a packed row; None if its length is wrong or unused bits are set."""
        words = self.zeros()
        return self.reduce(words) if self.add(words, data) else None

    def _packed_lanes(self, data: Bytes) -> Words:
        """Returns the bytes of a row as lanes of words `[words, columns]`, without a copy."""
        words = self._pieces[-1].word + 1
        count = words * self._columns
        return np.frombuffer(data, self.word, count).reshape(words, self._columns)

    def _pack(self, lanes: Words, packed: Words) -> None:
        """Packs columns of the lanes of numbers into the same columns of the lanes of words."""
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
        """Adds columns of the lanes of words to those of numbers, not reduced modulo 2^bits."""
        moved = np.empty(lanes.shape[1], self.word)
        rows, words = list(lanes), list(packed)
        for piece in self._pieces:
            row = rows[piece.lane]
            if piece.opens:
                word = words[piece.word]
                if not word.flags.aligned:  # copied, since operations on unaligned words are slow
                    word = word.copy()
            if piece.first and piece.opens:
                np.add(row, word, row)
                continue
            piece.out(word, piece.shift, moved)
            np.add(row, moved, row)
