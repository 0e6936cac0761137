"""An array in pieces, as files hold it: it is never joined, and never copied as a whole."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privfed.vector import Indices

WIDER = {"u2": "i4", "u4": "i8", "u8": "f8"}
"""Types that torch 2.4 cannot convert, and wider ones that hold the same numbers."""


@dataclass(frozen=True)
class Pieces:
    """An array `[N, *shape]` as `pieces` `[n, *shape]` of one type, one after another.

    They may be read-only, and mapped from a file: rows that nobody asks for are not read.
    """

    pieces: tuple[np.ndarray, ...]

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __iter__(self) -> Iterator[np.ndarray]:
        return itertools.chain.from_iterable(self.pieces)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return (len(self), *self.pieces[0].shape[1:])

    def each(self, change: Callable[[np.ndarray], np.ndarray]) -> Pieces:
        """The same pieces, with `change` made to each."""
        return Pieces(tuple(change(piece) for piece in self.pieces))

    def take(self, rows: Indices) -> np.ndarray:
        """A copy of the rows at `rows` `[n]`, in a type that torch can convert."""
        first = self.pieces[0]
        taken = np.empty((len(rows), *first.shape[1:]), first.dtype)
        number = np.searchsorted(self._ends, rows, side="right")
        order = np.argsort(number, kind="stable")
        bounds = np.flatnonzero(np.diff(number[order], prepend=-1))
        for some in np.split(order, bounds[1:]) if len(rows) else ():
            piece = number[some[0]]
            within = rows[some] - (self._ends[piece] - len(self.pieces[piece]))
            taken[some] = self.pieces[piece][within]
        return taken.astype(WIDER.get(taken.dtype.str[1:], taken.dtype), copy=False)

    @cached_property
    def _ends(self) -> Indices:
        """Where each piece ends."""
        return np.cumsum([len(piece) for piece in self.pieces])
