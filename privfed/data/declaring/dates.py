"""Columns of dates in a public sample, and the form in which cells write them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from privfed.data.declaring.kinds import (
    ColumnKind,
    DateColumn,
    LeftOutColumn,
    few_and_rare,
    quoted_list,
)
from privfed.data.tables.dates import ISO, day_number, iso_date, parsed_days
from privfed.data.tables.delimited import MISSING
from privfed.data.tables.words import Words

_LAST = "9999-12-31"
_DAY_FORMS = (
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%d-%b-%Y"),
    *("%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y"),
)
_FORMS = (ISO, *map("".join, itertools.product(_DAY_FORMS, ("", " %H:%M", " %H:%M:%S"))))


def date_kind(words: Words) -> ColumnKind | None:
    """What a column of dates in a common form is; None where its words are no dates."""
    fitting = [(form, odd) for form in _FORMS if (odd := _odd_words(words, form)) is not None]
    if not fitting:
        return None
    form, odd = fitting[0]
    days = _days(words, form, odd)
    for other, also_odd in fitting[1:]:
        if not np.array_equal(_days(words, other, also_odd), days, equal_nan=True):
            return LeftOutColumn(
                f"dates, and whether {form!r} or {other!r} is not clear: see data.dates"
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


def _odd_words(words: Words, form: str) -> list[str] | None:
    """The words that are no dates of this form, where they are few; None where they are not."""
    values = [value for value in words.values if value not in MISSING]
    odd = [value for value in values if parsed_days([value], form) is None]
    dates = len(values) - len(odd)
    return odd if dates and few_and_rare(words, odd, dates) else None


def _days(words: Words, form: str, odd: Sequence[str]) -> np.ndarray:
    """The days `[N]` since the first of 1970, NaN where a cell holds no date."""
    empty = {*MISSING, *odd}
    days = [
        np.nan if value in empty else (parsed_days([value], form) or [np.nan])[0]
        for value in words.values
    ]
    return np.array([*days, np.nan])[words.codes]
