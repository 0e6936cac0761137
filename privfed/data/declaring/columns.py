"""What a column of a public sample is, of any kind, and why."""

from __future__ import annotations

import numpy as np

from privfed.data.declaring.dates import date_kind
from privfed.data.declaring.kinds import ENOUGH_ROWS, CategoryColumn, ColumnKind, LeftOutColumn
from privfed.data.declaring.numeric import DECIMAL_COMMA, mixed_kind, numeric_kind
from privfed.data.tables.delimited import Dialect
from privfed.data.tables.words import Words

MOST_CATEGORIES = 20


def column_kind(column: np.ndarray | Words | str, dialect: Dialect | None) -> ColumnKind:
    """What `column` is: numbers `[N, *]`, words, or else the name of the type that it is of.

    In a `dialect` words are read as numbers, where its declaration says that it holds numbers.
    """
    if isinstance(column, str):
        return LeftOutColumn(f"of type {column}")
    if isinstance(column, np.ndarray):
        return numeric_kind(column)
    if not (column.codes >= 0).any():
        return LeftOutColumn("empty in every row")
    return (
        date_kind(column)
        or (mixed_kind(column, dialect) if dialect else None)
        or _word_kind(column)
    )


def _word_kind(words: Words) -> ColumnKind:
    """A category, or words that are too many, too few or numbers of another form."""
    values = sorted(value for value in words.values if value)
    rows = int((words.codes >= 0).sum())
    empty = len(words.codes) - rows
    if all(DECIMAL_COMMA.fullmatch(value) for value in values):
        return LeftOutColumn("numbers with commas; write them as the others, or see data.decimal")
    if len(values) > MOST_CATEGORIES:
        if len(values) == rows:
            return LeftOutColumn(
                "a word of its own in every row: a name, a record number or free text"
            )
        return LeftOutColumn(
            f"{len(values)} different words; up to {MOST_CATEGORIES} make a category"
        )
    if len(values) == 1 and not empty and rows >= ENOUGH_ROWS:
        return LeftOutColumn("the same in every row")
    why = f"a category of {len(values)} words"
    why += f"; {empty} of {len(words.codes)} empty: none of them" if empty else ""
    return CategoryColumn(why, values, bool(empty))
