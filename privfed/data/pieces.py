"""An array in pieces, as files store it; the pieces are never joined or copied as a whole."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from privfed.core.deferred import Tensor, torch
from privfed.core.vector import Indices

_BATCH_SIZE = 2**22
"""Number of values compared at once."""
WIDER = {"u2": "i4", "u4": "i8", "u8": "f8"}
"""Types that torch 2.4 cannot convert, and wider ones that hold the same numbers."""


@dataclass(frozen=True)
class Pieces:
    """An array `[N, *shape]` as `pieces` `[n, *shape]` of one type, one after another.

    Pieces may be read-only, and mapped from a file: examples that are not requested are not read.
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
        """Returns the pieces with `change` applied to each."""
        return Pieces(tuple(change(piece) for piece in self.pieces))

    def take(self, rows: Indices) -> np.ndarray:
        """Returns a copy of the examples at `rows` `[n]`, in a type that torch supports."""
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
        """The index in the whole array at which each piece ends (exclusive)."""
        return np.cumsum([len(piece) for piece in self.pieces])


@dataclass(frozen=True)
class Mapped:
    """Features `[N, *features]` float32: `store[rows]`, clipped to `bounds`, scaled `onto` a range.

    `store` `[M, *features]` has any real type and is in CPU memory or memory-mapped files; `rows`
    `[N]` are indices into it. Bounds are public constants. NaN in the store is replaced by
    `missing` (in the store's own units), unless that is None.
    """

    store: Tensor | Pieces
    rows: Tensor
    bounds: tuple[float, float]
    onto: tuple[float, float]
    missing: float | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the examples as a tensor, `(N, *features)`."""
        return (len(self.rows), *self.store.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def __getitem__(self, index: Tensor) -> Tensor:
        """Returns the features `[..., *features]` of rows `index` `[...]`, on `device`."""
        values = self._stored(self.rows[index.to(self.rows.device)]).to(self.device).float()
        if self.missing is not None:
            values.nan_to_num_(self.missing, float("inf"), float("-inf"))
        low, high = self.bounds
        start, end = self.onto
        return values.clamp_(low, high).sub_(low).mul_((end - start) / (high - low)).add_(start)

    def _stored(self, rows: Tensor) -> Tensor:
        """Returns a copy `[..., *features]` of the `rows` `[...]` of the store."""
        if isinstance(self.store, Pieces):
            taken = self.store.take(rows.reshape(-1).numpy())
            return torch.from_numpy(taken).view(*rows.shape, *taken.shape[1:])
        return self.store[rows]

    def outside(self) -> tuple[float, tuple[float, float]]:
        """Returns the fraction of these rows' stored numbers outside `bounds`, and their range.

        The range (low, high) is the smallest one that contains all these numbers and the bounds.
        NaN is not outside.
        """
        low, high = self.bounds
        beyond, count, least, most = 0, 0, low, high
        size = max(1, _BATCH_SIZE // max(math.prod(self.shape[1:]), 1))
        for rows in torch.split(self.rows, size):
            numbers = self._stored(rows).double()
            beyond += int(((numbers < low) | (numbers > high)).sum())
            count += numbers.numel()
            least = min(least, float(numbers.nan_to_num(low).min()))
            most = max(most, float(numbers.nan_to_num(high).max()))
        return beyond / max(count, 1), (least, most)

    def take(self, index: Tensor) -> Mapped:
        """Returns the rows `index` `[n]` of these features, still mapped."""
        return replace(self, rows=self.rows[index])

    def to(self, device: torch.device) -> Mapped:
        """Returns the same features, copied to `device` when read; the store is not moved."""
        return replace(self, device=device)
