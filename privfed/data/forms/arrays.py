"""Arrays of numbers as features: clipped to declared bounds and scaled onto [-1, 1].

Arrays stay in the type of the file, for example bytes, and are scaled only when a batch is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from privfed.core.deferred import torch
from privfed.core.errors import Refused
from privfed.core.vector import Indices
from privfed.data.pieces import WIDER, Mapped, Pieces
from privfed.data.tables.cells import native_order

PlaceOf = Callable[[int], str]
"""Returns the name of example i in messages: its file, and its position in the file."""


@dataclass(frozen=True)
class RawExamples:
    """Contents of files as read: `x`, an array `[N, *stored]` or N texts, and labels `y` `[N]`.

    `stored` is the shape of an example in the file. y is None for texts without labels. `place`
    maps an example's index to its name in messages. `owners` `[N]` are indices into `clients`, and
    None if examples have no owners. A client may own no example.
    """

    x: np.ndarray | Pieces | Sequence[str]
    y: np.ndarray | Sequence[object] | None
    place: PlaceOf
    owners: Indices | None = None
    clients: tuple[str, ...] = ()


_ONTO = (-1.0, 1.0)
_BATCH_SIZE = 2**22
"""Number of values checked at once."""


@dataclass(frozen=True)
class ArrayForm:
    """The form of examples that are arrays: `shape`, and `bounds` to which numbers are clipped."""

    shape: tuple[int, ...]
    bounds: tuple[float, float]

    @property
    def squared_norm(self) -> float:
        """Bound on the squared L2 norm of an example scaled to [-1, 1]: its number of values."""
        return float(math.prod(self.shape))

    @property
    def stored(self) -> tuple[tuple[int, ...], ...]:
        """The shapes that one example may have in a file.

        If `shape` is an image `[C, H, W]`, also `[H, W, C]`, and with one channel `[H, W]`.
        """
        if len(self.shape) != 3:
            return (self.shape,)
        channels, *area = self.shape
        flat = ((*area,),) if channels == 1 else ()
        return (self.shape, (*area, channels), *flat)

    def features(self, array: np.ndarray | Pieces, place: PlaceOf) -> tuple[Mapped, int]:
        """Returns the features of an array `[N, *stored]`, and the number of clipped values.

        An array in pieces is not copied. `place` maps an example's index to its name in messages.
        Raises `Refused` if a number is not finite.
        """
        rows = torch.arange(len(array))
        if isinstance(array, Pieces):
            clipped, at = 0, 0
            for piece in array.pieces:
                clipped += self._count_outside(piece, place, at)
                at += len(piece)
            return Mapped(array.each(self._arranged), rows, self.bounds, _ONTO), clipped
        clipped = self._count_outside(array, place)
        plain = native_order(array)
        plain = plain.astype(WIDER.get(plain.dtype.str[1:], plain.dtype), copy=False)
        store = torch.from_numpy(self._arranged(np.require(plain, requirements="W")))
        return Mapped(store, rows, self.bounds, _ONTO), clipped

    def _arranged(self, array: np.ndarray) -> np.ndarray:
        """Rearranges the dimensions of an array `[N, *stored]` to `[N, *shape]`, without a copy."""
        stored = array.shape[1:]
        if stored == self.shape:
            return array
        return array[:, None] if len(stored) < len(self.shape) else np.moveaxis(array, -1, 1)

    def _count_outside(self, array: np.ndarray, place: PlaceOf, at: int = 0) -> int:
        """Returns the number of values outside `bounds`; `at` is the index of the first example.

        Raises `Refused` if a number is not finite.
        """
        (low, high), count = self.bounds, 0
        step = max(1, _BATCH_SIZE // max(math.prod(self.shape), 1))
        for start in range(0, len(array), step):
            piece = array[start : start + step]
            piece = piece.reshape(len(piece), -1)
            finite = np.isfinite(piece).all(1)
            if not finite.all():
                index = at + start + int(finite.argmin())
                raise Refused(
                    f"data: {place(index)} holds a number that is not finite; correct the number, "
                    "or leave the example out"
                )
            count += int(((piece < low) | (piece > high)).sum())
        return count


def refuse_no_numbers(kind: np.dtype, called: str) -> None:
    """Raises `Refused` if `kind`, the type of the array called `called`, is not numeric."""
    if kind.kind not in "buif" or kind.itemsize > 8:
        raise Refused(
            f"data.x: {called} holds no numbers; expected numbers, or text with data.text = true",
            private=f"it is of type {kind}",
        )
