"""How a source makes what a model takes from raw columns, as it declares it.

All of it is public: bounds and categories are declared, never found in private data. A checkpoint
carries it (`privfed.models.form`), and an export computes it again
(`privfed.trained.with_preprocessing`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from privfed.data.mapped import Mapped
from privfed.deferred import torch
from privfed.parts import Part


class Numbers(Part):
    """`count` numbers beside each other, under the name or the pattern that declares them.

    They are clipped to `bounds`; an empty one counts as `missing` (None: such a row is refused).
    `days`: of a column of dates, each is in days since the first of 1970 (UTC).
    """

    column: str
    count: int = 1
    bounds: tuple[float, float]
    missing: float | None = None
    days: bool = False


class Category(Part):
    """A column of words: one feature 0 or 1 for each of its `values`.

    `lacks`: an empty word counts as none of them; else its row is refused.
    """

    column: str
    values: tuple[str, ...]
    lacks: bool = False


class Preprocessing(Part):
    """Numbers first, scaled from their bounds `onto` a range, then categories; in that order.

    `shape` is that of one example, as the model takes it. `clips`: numbers beyond their bounds and
    words that are not declared are taken (as the bound, as no category), else their row is refused.
    """

    numbers: tuple[Numbers, ...] = ()
    categories: tuple[Category, ...] = ()
    onto: tuple[float, float]
    shape: tuple[int, ...]
    clips: bool = True

    @property
    def whole(self) -> bool:
        """Whether its input has the shape of one example: it is one array, scaled."""
        return len(self.numbers) == 1 and not self.categories

    @property
    def inputs(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """The raw columns by name, each with its type and the shape of one row.

        Numbers of a table are exact to double precision (a date has many digits), an array's not.
        """
        inputs: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        if self.numbers:
            width = sum(each.count for each in self.numbers)
            inputs["numbers"] = (self.dtype, self.shape if self.whole else (width,))
        if self.categories:
            inputs["categories"] = (torch.int64, (len(self.categories),))
        return inputs

    @property
    def dtype(self) -> torch.dtype:
        """Of numbers."""
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
        """One array `[N, *shape]`, all of whose numbers have the same `bounds`."""
        numbers = Numbers(column=column, count=math.prod(shape), bounds=bounds, missing=missing)
        return cls(numbers=(numbers,), onto=onto, shape=shape, clips=clips)

    @classmethod
    def of_mapped(cls, column: str, x: Mapped, clips: bool = True) -> Preprocessing:
        """What `x` does to its store."""
        return cls.of_array(column, x.shape[1:], x.bounds, x.onto, x.missing, clips)


def merged(numbers: Iterable[Numbers]) -> tuple[Numbers, ...]:
    """Neighbours that one pattern declares, as one."""
    groups: list[Numbers] = []
    for each in numbers:
        last = groups[-1] if groups else None
        if last is not None and last.model_copy(update={"count": each.count}) == each:
            groups[-1] = last.model_copy(update={"count": last.count + each.count})
        else:
            groups.append(each)
    return tuple(groups)
