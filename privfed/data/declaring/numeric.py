"""Columns of numbers in a public sample, and words among which numbers hide."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence

import numpy as np

from privfed.data.declaring.kinds import (
    ENOUGH_ROWS,
    ColumnKind,
    LeftOutColumn,
    NumericColumn,
    few_and_rare,
    quoted_list,
)
from privfed.data.declaring.ranges import LARGEST, rounded_range, without_binary_digits
from privfed.data.tables.conversion import parsed_number
from privfed.data.tables.delimited import Dialect
from privfed.data.tables.words import Words
from privfed.errors import Refused

DECIMAL_COMMA = re.compile(r"[-+]?\d[\d.]*,\d+")
"""A number with a decimal comma."""
_DECIMAL_COMMA_OR_WHOLE = re.compile(r"[-+]?\d+(,\d+)?")


def numeric_kind(column: np.ndarray, odd_words: Sequence[str] = ()) -> ColumnKind:
    """What a column of numbers `[N, *]` is, NaN where a cell is empty or one of `odd_words`."""
    cells = column.astype(np.float64).reshape(-1)
    finite = cells[np.isfinite(cells)]
    if not len(finite):
        return LeftOutColumn("empty in every row")
    low, high = rounded_range(finite)
    if column.ndim == 1 and len(finite) >= ENOUGH_ROWS:
        if finite.min() == finite.max() and len(finite) == len(cells):
            return LeftOutColumn("the same in every row", (low, high))
        if len(np.unique(finite)) == len(finite) and (finite == np.floor(finite)).all():
            why = "a whole number of its own in every row: a record number?"
            return LeftOutColumn(why, (low, high))
    empty = int(np.isnan(cells).sum())
    missing = _median(finite) if empty else None
    why = f"numbers from {finite.min():g} to {finite.max():g}"
    if beyond := int(((cells < low) | (cells > high)).sum()):
        why += f"; {beyond} of {len(cells)} far beyond the others, and clipped"
    if odd_words:
        why += f"; {quoted_list(odd_words)} counts as empty"
    if empty:
        why += f"; {empty} of {len(cells)} empty: the median is taken"
    return NumericColumn(why, (low, high), missing, tuple(odd_words))


def _median(finite: np.ndarray) -> float:
    return without_binary_digits(float(np.median(finite.clip(-LARGEST, LARGEST))))


def mixed_kind(words: Words, dialect: Dialect) -> ColumnKind | None:
    """Numbers among which few words stand, as "unknown"; None where `words` are of another kind."""
    cells = {value: _number(value, dialect) for value in words.values}
    odd = [value for value, cell in cells.items() if cell is None]
    numbers = {cell for cell in cells.values() if cell is not None and math.isfinite(cell)}
    if len(numbers) < 2 or not few_and_rare(words, odd, len(numbers)):
        return None
    column = np.array([np.nan if c is None else c for c in cells.values()] + [np.nan])
    return numeric_kind(column[words.codes], odd)


def _number(value: str, dialect: Dialect) -> float | None:
    try:
        return parsed_number(value, dialect, "")
    except Refused:
        return None


def decimal_of(columns: Collection[np.ndarray | Words | str]) -> str:
    """The decimal mark, a point or a comma, of columns that were read with a point."""
    words = [column.values for column in columns if isinstance(column, Words)]
    commas = any(
        any(map(DECIMAL_COMMA.fullmatch, values))
        and all(map(_DECIMAL_COMMA_OR_WHOLE.fullmatch, values))
        for values in words
    )
    points = any(
        isinstance(column, np.ndarray) and (column[np.isfinite(column)] % 1 != 0).any()
        for column in columns
    )
    return "," if commas and not points else "."
