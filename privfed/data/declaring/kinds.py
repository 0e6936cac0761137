"""What a column of a public sample is, and why: numbers, dates, a category, or nothing to learn."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from privfed.data.tables.columns import number
from privfed.data.tables.dates import ISO, day, iso, parsed
from privfed.data.tables.delimited import MISSING, Dialect
from privfed.data.tables.words import Words
from privfed.errors import Refused

MOST_CATEGORIES = 20
_ENOUGH = 20
"""So many rows tell a record number, a constant or an outlier from chance."""
_FAR = 3.0
"""Beyond the others by so many times their range: an outlier."""
_MOST_ODD_WORDS = 3
_LARGEST, _LAST = 1e300, "9999-12-31"
_DAYS = (
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%d-%b-%Y"),
    *("%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y"),
)
_FORMS = (ISO, *map("".join, itertools.product(_DAYS, ("", " %H:%M", " %H:%M:%S"))))
_COMMA = re.compile(r"[-+]?\d[\d.]*,\d+")
_EITHER = re.compile(r"[-+]?\d+(,\d+)?")


@dataclass(frozen=True)
class Numbers:
    """Bounds, what empty cells count as (None: there are none), and words that mean nothing."""

    why: str
    bounds: tuple[float, float]
    missing: float | None = None
    odd_words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Days:
    """The first and the last date, as ISO has it, and how cells write them."""

    why: str
    first: str
    last: str
    format: str
    missing: str | None = None
    odd_words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Values:
    """The values of a category, and whether a cell may be empty."""

    why: str
    values: list[str]
    may_be_empty: bool


@dataclass(frozen=True)
class LeftOut:
    """A column that a model learns nothing from; `bounds`, were it a feature nevertheless."""

    why: str
    bounds: tuple[float, float] | None = None


Kind = Numbers | Days | Values | LeftOut


def kind(column: np.ndarray | Words | str, dialect: Dialect | None) -> Kind:
    """What `column` is: numbers `[N, *]`, words, or else the type that it is of.

    In a `dialect` words are read as numbers, where its declaration says that it holds numbers.
    """
    if isinstance(column, str):
        return LeftOut(f"of type {column}")
    if isinstance(column, np.ndarray):
        return _of_numbers(column)
    if not (column.codes >= 0).any():
        return LeftOut("empty in every row")
    return (
        _of_dates(column) or (_of_mixed(column, dialect) if dialect else None) or _of_words(column)
    )


def _of_numbers(column: np.ndarray, odd_words: Sequence[str] = ()) -> Kind:
    cells = column.astype(np.float64).reshape(-1)
    there = cells[np.isfinite(cells)]
    if not len(there):
        return LeftOut("empty in every row")
    low, high = bounds(there)
    if column.ndim == 1 and len(there) >= _ENOUGH:
        if there.min() == there.max() and len(there) == len(cells):
            return LeftOut("the same in every row", (low, high))
        if len(np.unique(there)) == len(there) and (there == np.floor(there)).all():
            return LeftOut("a whole number of its own in every row: a record number?", (low, high))
    empty = int(np.isnan(cells).sum())
    missing = plain(float(np.median(there.clip(-_LARGEST, _LARGEST)))) if empty else None
    why = [f"numbers from {there.min():g} to {there.max():g}"]
    if beyond := int(((cells < low) | (cells > high)).sum()):
        why.append(f"{beyond} of {len(cells)} far beyond the others, and clipped")
    if odd_words:
        why.append(f"{_listed(odd_words)} counts as empty")
    if empty:
        why.append(f"{empty} of {len(cells)} empty: the median is taken")
    return Numbers("; ".join(why), (low, high), missing, tuple(odd_words))


def bounds(numbers: np.ndarray) -> tuple[float, float]:
    """The range of finite `numbers`, rounded outwards to two digits of its width.

    Up to one in 200 at each end (of 20 or more: one at least) are left beyond, where they lie
    farther from the rest than three times its range.
    """
    ordered = np.sort(numbers.clip(-_LARGEST, _LARGEST))
    low, high = float(ordered[0]), float(ordered[-1])
    few = max(1, len(ordered) // 200) if len(ordered) >= _ENOUGH else 0
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
    start, end = plain(math.floor(low / unit) * unit), plain(math.ceil(high / unit) * unit)
    return min(start, low), max(end, high)


def plain(value: float) -> float:
    """Without the digits that binary fractions bring."""
    return float(f"{value:.12g}")


def _of_dates(words: Words) -> Kind | None:
    """Dates in a common form; None where they are no dates."""
    fitting = [(form, odd) for form in _FORMS if (odd := _odd(words, form)) is not None]
    if not fitting:
        return None
    form, odd = fitting[0]
    days = _cells(words, form, odd)
    for other, also_odd in fitting[1:]:
        if not np.array_equal(_cells(words, other, also_odd), days, equal_nan=True):
            return LeftOut(f"dates, and whether {form!r} or {other!r} is not clear: see data.dates")
    there = days[np.isfinite(days)]
    low = math.floor(there.min())
    high = max(min(math.ceil(there.max()), day(_LAST)), low + 1)
    empty = int(np.isnan(days).sum())
    missing = iso(float(np.median(there))) if empty else None
    why = [f"dates from {iso(there.min())} to {iso(there.max())}, as days since 1970"]
    why += [f"{_listed(odd)} counts as empty"] if odd else []
    why += [f"{empty} of {len(days)} empty: the median is taken"] if empty else []
    return Days("; ".join(why), iso(low), iso(high), form, missing, tuple(odd))


def _odd(words: Words, form: str) -> list[str] | None:
    """The words that are no dates of this form, where they are few; None where they are not."""
    values = [value for value in words.values if value not in MISSING]
    odd = [value for value in values if parsed([value], form) is None]
    return odd if len(odd) < len(values) and _few(words, odd, len(values) - len(odd)) else None


def _few(words: Words, odd: Sequence[str], others: int) -> bool:
    """Whether words are so few, and so rare, that they stand for nothing among `others`."""
    if len(odd) > min(_MOST_ODD_WORDS, others - 1):
        return not odd
    share = np.isin(words.codes, [words.values.index(value) for value in odd])
    return 2 * int(share.sum()) <= int((words.codes >= 0).sum())


def _cells(words: Words, form: str, odd: Sequence[str]) -> np.ndarray:
    """Days `[N]`, NaN where there is none."""
    nothing = {*MISSING, *odd}
    days = [np.nan if v in nothing else (parsed([v], form) or [np.nan])[0] for v in words.values]
    return np.array([*days, np.nan])[words.codes]


def _of_mixed(words: Words, dialect: Dialect) -> Kind | None:
    """Numbers among which few words stand, as "unknown"; None where they are not."""
    cells = {value: _number(value, dialect) for value in words.values}
    odd = [value for value, cell in cells.items() if cell is None]
    numbers = {cell for cell in cells.values() if cell is not None and math.isfinite(cell)}
    if len(numbers) < 2 or not _few(words, odd, len(numbers)):
        return None
    column = np.array([np.nan if c is None else c for c in cells.values()] + [np.nan])
    return _of_numbers(column[words.codes], odd)


def _number(value: str, dialect: Dialect) -> float | None:
    try:
        return number(value, dialect, "")
    except Refused:
        return None


def decimal_of(columns: Collection[np.ndarray | Words | str]) -> str:
    """What divides the whole of a number from its parts, in columns read with a point."""
    words = [column.values for column in columns if isinstance(column, Words)]
    commas = any(
        any(map(_COMMA.fullmatch, values)) and all(map(_EITHER.fullmatch, values))
        for values in words
    )
    points = any(
        isinstance(column, np.ndarray) and (column[np.isfinite(column)] % 1 != 0).any()
        for column in columns
    )
    return "," if commas and not points else "."


def _of_words(words: Words) -> Kind:
    values = sorted(value for value in words.values if value)
    rows = int((words.codes >= 0).sum())
    empty = len(words.codes) - rows
    if all(_COMMA.fullmatch(value) for value in values):
        return LeftOut("numbers with commas; write them as the others, or see data.decimal")
    if len(values) > MOST_CATEGORIES:
        if len(values) == rows:
            return LeftOut("a word of its own in every row: a name, a record number or free text")
        return LeftOut(f"{len(values)} different words; up to {MOST_CATEGORIES} make a category")
    if len(values) == 1 and not empty and rows >= _ENOUGH:
        return LeftOut("the same in every row")
    why = f"a category of {len(values)} words"
    why += f"; {empty} of {len(words.codes)} empty: none of them" if empty else ""
    return Values(why, values, bool(empty))


def _listed(words: Sequence[str]) -> str:
    return ", ".join(map(repr, words))
