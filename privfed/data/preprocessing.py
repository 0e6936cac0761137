"""The declaration of how a source computes features from raw columns.

All of it is public: bounds and categories are declared, never inferred from private data. A
checkpoint contains it (`privfed.models.form`), and an export repeats the computation
(`privfed.trained.export_formats`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from privfed.core.deferred import torch
from privfed.core.parts import Part
from privfed.data.pieces import Mapped


class Numbers(Part):
    """`count` adjacent columns of numbers, which the name or pattern `column` declares.

    Numbers beyond `bounds` are clipped or refused: see `Preprocessing`. `missing` replaces an empty
    cell; if it is None, empty cells are refused. If `days`, they are dates, in days since
    1970-01-01 (UTC).
    """

    column: str
    count: int = 1
    bounds: tuple[float, float]
    missing: float | None = None
    days: bool = False


class Category(Part):
    """A column of words, encoded as one 0/1 feature for each of its `values`.

    If `lacks` is true, an empty cell is encoded as 0 for every value; otherwise it is refused.
    """

    column: str
    values: tuple[str, ...]
    lacks: bool = False


class Outside(NamedTuple):
    """Numbers of a public test set beyond their declared bounds.

    `share` is their fraction among the column's numbers; `seen` is the smallest range that contains
    all numbers and the `bounds`.
    """

    column: str
    bounds: tuple[float, float]
    share: float
    seen: tuple[float, float]


class Preprocessing(Part):
    """The computation of features from raw columns: first `numbers`, then `categories`.

    Numbers are scaled from their bounds to the range `onto`. `shape` is that of one example, as the
    model takes it. If the source `clips`, numbers beyond their bounds are clipped and undeclared
    words count as no category; otherwise their row is refused.
    """

    numbers: tuple[Numbers, ...] = ()
    categories: tuple[Category, ...] = ()
    onto: tuple[float, float]
    shape: tuple[int, ...]
    clips: bool = True

    @property
    def is_array(self) -> bool:
        """Whether the raw input is one array: there is one entry of `numbers`, and no category."""
        return len(self.numbers) == 1 and not self.categories

    @property
    def inputs(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """The raw columns by name, each with its type and the shape of one row.

        Numbers are of type `dtype`; categories are int64 codes.
        """
        inputs: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        if self.numbers:
            width = sum(numbers.count for numbers in self.numbers)
            inputs["numbers"] = (self.dtype, self.shape if self.is_array else (width,))
        if self.categories:
            inputs["categories"] = (torch.int64, (len(self.categories),))
        return inputs

    @property
    def dtype(self) -> torch.dtype:
        """The type of raw numbers: float32 if an example has several dimensions, otherwise float64.

        Columns of tables are float64, since dates have many digits.
        """
        return torch.float32 if len(self.shape) > 1 else torch.float64

    @classmethod
    def of_array(
        cls,
        column: str,
        shape: tuple[int, ...],
        bounds: tuple[float, float],
        onto: tuple[float, float],
        missing: float | None = None,
        clips: bool = True,
    ) -> Preprocessing:
        """Returns the preprocessing of one array `[N, *shape]` with common `bounds`.

        Args:
          column: name of the array.
          shape: shape of one example.
          bounds: declared lower and upper bound of all numbers.
          onto: range onto which the bounds are scaled.
          missing: replacement of empty cells; None refuses their rows.
          clips: whether numbers beyond the bounds are clipped; otherwise refused.
        """
        numbers = Numbers(column=column, count=math.prod(shape), bounds=bounds, missing=missing)
        return cls(numbers=(numbers,), onto=onto, shape=shape, clips=clips)

    @classmethod
    def of_mapped(cls, column: str, x: Mapped, clips: bool = True) -> Preprocessing:
        """Returns the preprocessing that `x` applies to its store."""
        return cls.of_array(column, x.shape[1:], x.bounds, x.onto, x.missing, clips)


def merged(numbers: Iterable[Numbers]) -> tuple[Numbers, ...]:
    """Returns the declarations in order; adjacent ones that differ only in `count` become one.

    Their counts are added.
    """
    groups: list[Numbers] = []
    for declared in numbers:
        last = groups[-1] if groups else None
        if last is not None and last.model_copy(update={"count": declared.count}) == declared:
            groups[-1] = last.model_copy(update={"count": last.count + declared.count})
        else:
            groups.append(declared)
    return tuple(groups)
