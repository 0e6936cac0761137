"""The kinds of a sample's columns: numbers, dates, a category, or nothing to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privfed.data.tables.words import Words

ENOUGH_ROWS = 20
"""The number of rows that tells a record number, a constant or an outlier from chance."""
_MOST_ODD_WORDS = 3


@dataclass(frozen=True)
class NumericColumn:
    """A column of numbers with its bounds, and `why` it is declared so.

    Empty cells count as `missing` (None: there are none), and so do the `odd_words`.
    """

    why: str
    bounds: tuple[float, float]
    missing: float | None = None
    odd_words: tuple[str, ...] = ()


@dataclass(frozen=True)
class DateColumn:
    """A column of dates: the first and the last one, as ISO has it, and how cells write them.

    Empty cells count as the date `missing` (None: there are none), and so do the `odd_words`.
    """

    why: str
    first: str
    last: str
    format: str
    missing: str | None = None
    odd_words: tuple[str, ...] = ()


@dataclass(frozen=True)
class CategoryColumn:
    """A column of words: the values of a category, and whether a cell may be empty."""

    why: str
    values: list[str]
    may_be_empty: bool


@dataclass(frozen=True)
class LeftOutColumn:
    """A column that a model learns nothing from; `bounds`, were it a feature nevertheless."""

    why: str
    bounds: tuple[float, float] | None = None


ColumnKind = NumericColumn | DateColumn | CategoryColumn | LeftOutColumn


def few_and_rare(words: Words, odd: Sequence[str], others: int) -> bool:
    """Whether the words `odd` are so few, and so rare, that they count as empty.

    There are `others` different words beside them.
    """
    if len(odd) > min(_MOST_ODD_WORDS, others - 1):
        return not odd
    is_odd = np.isin(words.codes, [words.values.index(value) for value in odd])
    return 2 * int(is_odd.sum()) <= int((words.codes >= 0).sum())


def quoted_list(words: Sequence[str]) -> str:
    """`words` as a reason names them: quoted, with commas between."""
    return ", ".join(map(repr, words))
