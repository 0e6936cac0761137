"""Infers the kind of each column of a public sample, and states the reason."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from privfed.core.errors import Refused
from privfed.data.tables.cells import Words
from privfed.data.tables.conversion import parsed_number
from privfed.data.tables.dates import ISO, day_number, iso_date, parsed_days
from privfed.data.tables.delimited import MISSING, Dialect

ENOUGH_ROWS = 20
"""Smallest number of filled cells in which constants, record numbers and outliers are detected."""
_MOST_MISSING_WORDS = 3


@dataclass(frozen=True)
class NumericColumn:
    """A column of numbers; `why` is the reason for its `bounds`, for a comment in the run file.

    `missing` replaces empty cells and cells with one of `missing_words`; it is None if there are no
    such cells.
    """

    why: str
    bounds: tuple[float, float]
    missing: float | None = None
    missing_words: tuple[str, ...] = ()


@dataclass(frozen=True)
class DateColumn:
    """A column of dates: the first and last date in ISO format, and the format of cells.

    The date `missing` replaces empty cells and cells with one of `missing_words`; it is None if
    there are no such cells.
    """

    why: str
    first: str
    last: str
    format: str
    missing: str | None = None
    missing_words: tuple[str, ...] = ()


@dataclass(frozen=True)
class CategoryColumn:
    """A column of words declared as a category: its `values`, and whether a cell may be empty."""

    why: str
    values: list[str]
    may_be_empty: bool


@dataclass(frozen=True)
class LeftOutColumn:
    """A column that is left out of the declaration, and the reason.

    `bounds` are a suggestion in case the user declares the column as numbers anyway, or None.
    """

    why: str
    bounds: tuple[float, float] | None = None


ColumnKind = NumericColumn | DateColumn | CategoryColumn | LeftOutColumn


def few_and_rare(words: Words, odd: Sequence[str], others: int) -> bool:
    """Whether the words `odd`, which the column's inferred type excludes, may count as empty.

    True if `odd` is empty; or it has at most 3 words, fewer than `others` (the number of other
    distinct words), and at most half of the non-empty cells contain one of them.
    """
    if len(odd) > min(_MOST_MISSING_WORDS, others - 1):
        return not odd
    is_odd = np.isin(words.codes, [words.values.index(value) for value in odd])
    return 2 * int(is_odd.sum()) <= int((words.codes >= 0).sum())


def quoted_list(words: Sequence[str]) -> str:
    """Returns `words`, quoted and separated by commas, for the text of a reason."""
    return ", ".join(map(repr, words))


_LAST = "9999-12-31"
_DAY_FORMS = (
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%d-%b-%Y"),
    *("%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y"),
)
_FORMS = (ISO, *map("".join, itertools.product(_DAY_FORMS, ("", " %H:%M", " %H:%M:%S"))))


def date_kind(words: Words) -> ColumnKind | None:
    """Infers the declaration of a column of dates in a known format; None for other columns.

    A few words that are no dates, such as "unknown", count as empty (`few_and_rare`). If several
    formats fit but give different dates, the result is a `LeftOutColumn`.
    """
    fitting = [(form, odd) for form in _FORMS if (odd := _missing_words(words, form)) is not None]
    if not fitting:
        return None
    form, odd = fitting[0]
    days = _days(words, form, odd)
    for other, other_missing in fitting[1:]:
        if not np.array_equal(_days(words, other, other_missing), days, equal_nan=True):
            return LeftOutColumn(
                f"dates in an ambiguous format, {form!r} or {other!r}; state it in data.dates"
            )
    finite = days[np.isfinite(days)]
    first = math.floor(finite.min())
    last = max(min(math.ceil(finite.max()), day_number(_LAST)), first + 1)
    empty = int(np.isnan(days).sum())
    missing = iso_date(float(np.median(finite))) if empty else None
    why = f"dates from {iso_date(finite.min())} to {iso_date(finite.max())}, as days since 1970"
    why += f"; {quoted_list(odd)} counts as empty" if odd else ""
    why += f"; {empty} of {len(days)} empty: the median is taken" if empty else ""
    return DateColumn(why, iso_date(first), iso_date(last), form, missing, tuple(odd))


def _missing_words(words: Words, form: str) -> list[str] | None:
    """Returns the words that are no dates in `form`, to count as empty, without those in `MISSING`.

    None if they may not count as empty (`few_and_rare`), or no word is a date.
    """
    values = [value for value in words.values if value not in MISSING]
    odd = [value for value in values if parsed_days([value], form) is None]
    dates = len(values) - len(odd)
    return odd if dates and few_and_rare(words, odd, dates) else None


def _days(words: Words, form: str, odd: Sequence[str]) -> np.ndarray:
    """Returns the cells `[N]` as days since 1970-01-01; NaN for cells that are no dates in `form`.

    Empty cells, and the words in `MISSING` and `odd`, also become NaN.
    """
    empty = {*MISSING, *odd}
    days = [
        np.nan if value in empty else (parsed_days([value], form) or [np.nan])[0]
        for value in words.values
    ]
    return np.array([*days, np.nan])[words.codes]


LARGEST = 1e300
"""Largest magnitude of a bound; larger numbers are clipped to it."""
_FAR = 3.0
"""Least distance of an outlier from the remaining numbers, in multiples of their range."""


def rounded_range(numbers: np.ndarray) -> tuple[float, float]:
    """Returns bounds of finite `numbers`: the range, rounded outwards.

    Each bound is rounded to 2 significant digits of the range's width; equal numbers get a margin.

    Of n >= 20 numbers, outliers are excluded. The inner range is that without max(1, n // 200)
    numbers at each end. Its low (high) end is used if its width is positive, and the lowest
    (highest) number is farther from it than three times this width.
    """
    ordered = np.sort(numbers.clip(-LARGEST, LARGEST))
    low, high = float(ordered[0]), float(ordered[-1])
    few = max(1, len(ordered) // 200) if len(ordered) >= ENOUGH_ROWS else 0
    inner_low, inner_high = float(ordered[few]), float(ordered[len(ordered) - 1 - few])
    far = _FAR * (inner_high - inner_low)
    if far:
        low = inner_low if inner_low - low > far else low
        high = inner_high if high - inner_high > far else high
    return _outwards(low, high)


def _outwards(low: float, high: float) -> tuple[float, float]:
    if low == high:
        margin = max(1.0, abs(low) * 1e-6)
        return low - margin, high + margin
    unit = 10.0 ** max(math.floor(math.log10(high - low)) - 1, -300)
    start = without_binary_digits(math.floor(low / unit) * unit)
    end = without_binary_digits(math.ceil(high / unit) * unit)
    return min(start, low), max(end, high)


def without_binary_digits(value: float) -> float:
    """Returns `value` rounded to 12 significant digits, without artefacts of binary fractions."""
    return float(f"{value:.12g}")


DECIMAL_COMMA = re.compile(r"[-+]?\d[\d.]*,\d+")
"""A number with a decimal comma."""
_DECIMAL_COMMA_OR_WHOLE = re.compile(r"[-+]?\d+(,\d+)?")


def numeric_kind(column: np.ndarray, missing_words: Sequence[str] = ()) -> ColumnKind:
    """Infers the declaration of a column of numbers `[N]`, or of arrays of numbers `[N, *]`.

    NaN stands for empty cells and for cells with one of `missing_words`. A column is left out if it
    has no finite number; or if it has one number per cell, 20 or more of them finite, and all cells
    are equal, or the finite numbers are distinct integers.
    """
    cells = column.astype(np.float64).reshape(-1)
    finite = cells[np.isfinite(cells)]
    if not len(finite):
        return LeftOutColumn("empty in every row")
    low, high = rounded_range(finite)
    if column.ndim == 1 and len(finite) >= ENOUGH_ROWS:
        if finite.min() == finite.max() and len(finite) == len(cells):
            return LeftOutColumn("the same in every row", (low, high))
        if len(np.unique(finite)) == len(finite) and (finite == np.floor(finite)).all():
            why = "a different integer in every row: a record number?"
            return LeftOutColumn(why, (low, high))
    empty = int(np.isnan(cells).sum())
    missing = _median(finite) if empty else None
    why = f"numbers from {finite.min():g} to {finite.max():g}"
    if beyond := int(((cells < low) | (cells > high)).sum()):
        why += f"; {beyond} of {len(cells)} outliers, clipped"
    if missing_words:
        why += f"; {quoted_list(missing_words)} counts as empty"
    if empty:
        why += f"; {empty} of {len(cells)} empty: the median is taken"
    return NumericColumn(why, (low, high), missing, tuple(missing_words))


def _median(finite: np.ndarray) -> float:
    return without_binary_digits(float(np.median(finite.clip(-LARGEST, LARGEST))))


def mixed_kind(words: Words, dialect: Dialect) -> ColumnKind | None:
    """Returns the declaration of a column of numbers and a few words such as "unknown".

    None if it has fewer than two different finite numbers, or the words may not count as empty
    (`few_and_rare`).
    """
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
    """Infers the decimal mark ("." or ",") of columns that were read with "." as the mark.

    It is "," if some column of words has only integers and numbers with a decimal comma (at least
    one), and no column of numbers has a fraction; otherwise ".".
    """
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


MOST_CATEGORIES = 20


def column_kind(column: np.ndarray | Words | str, dialect: Dialect | None) -> ColumnKind:
    """Infers the declaration of `column`: numbers `[N, *]`, words, or the name of another type.

    A column of words that are numbers in `dialect`, except for a few, is declared as numbers; never
    if `dialect` is None.
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
    """Returns the declaration of a column of words: a category, or a column that is left out.

    It is left out if all words are numbers with a decimal comma, there are more than 20 different
    words, or 20 or more rows, none of them empty, all have the same word.
    """
    values = sorted(value for value in words.values if value)
    rows = int((words.codes >= 0).sum())
    empty = len(words.codes) - rows
    if all(DECIMAL_COMMA.fullmatch(value) for value in values):
        return LeftOutColumn("numbers with commas; use one decimal mark, or set data.decimal")
    if len(values) > MOST_CATEGORIES:
        if len(values) == rows:
            return LeftOutColumn(
                "a different word in every row: a name, a record number or free text"
            )
        return LeftOutColumn(
            f"{len(values)} different words, but a category has at most {MOST_CATEGORIES}"
        )
    if len(values) == 1 and not empty and rows >= ENOUGH_ROWS:
        return LeftOutColumn("the same in every row")
    why = f"a category of {len(values)} words"
    why += f"; {empty} of {len(words.codes)} empty: no category" if empty else ""
    return CategoryColumn(why, values, bool(empty))
