"""Examples as a source read them, before they take their declared form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from privfed.data.pieces import Pieces
from privfed.vector import Indices

PlaceOf = Callable[[int], str]
"""The place of example i in its files, as messages may call it."""


@dataclass(frozen=True)
class RawExamples:
    """What stands in files: `x`, an array `[N, *stored]` or N texts, and labels `y` `[N]`.

    An array may be in pieces. y is None where texts have no labels. `owners` `[N]` says whose an
    example is, a place among the `clients`, who may hold none; None where nobody owns them.
    """

    x: np.ndarray | Pieces | Sequence[str]
    y: np.ndarray | Sequence[object] | None
    place: PlaceOf
    owners: Indices | None = None
    clients: tuple[str, ...] = ()
