"""Dates as numbers: days since the first of 1970, which is a public constant and nobody's."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

import numpy as np
from pydantic import field_validator, model_validator

from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.data.tables.cells import Words

ISO = "iso"
_ORIGIN = datetime(1970, 1, 1)
_DAY = 86_400.0
_EXAMPLE = datetime(2001, 2, 3, 4, 5, 6)


class Dates(Part):
    """A column of dates, with the `first` and the `last`, beyond which they are clipped.

    Both are written as ISO 8601 has it ("2019-12-31"). So are cells, in any of its forms and with a
    time if need be, unless `format` (of `datetime.strptime`: "%d.%m.%Y") says how they are written.
    Times that name their zone are taken to UTC.
    """

    first: str
    """The first day, as ISO 8601 has it."""
    last: str
    """The last day."""
    format: str = ISO
    """How cells are written, as "%d.%m.%Y"; ISO 8601 unless told."""

    @field_validator("first", "last")
    @classmethod
    def _is_date(cls, value: str) -> str:
        day_number(value)
        return value

    @field_validator("format")
    @classmethod
    def _names_a_day(cls, value: str) -> str:
        try:
            same = (
                value == ISO
                or _days(_EXAMPLE.strftime(value), value) // 1 == (_EXAMPLE - _ORIGIN).days
            )
        except ValueError:
            same = False
        if not same:
            raise ValueError('expected "iso", or a form that names year, month and day: "%d.%m.%Y"')
        return value

    @model_validator(mode="after")
    def _in_order(self) -> Dates:
        if not day_number(self.first) < day_number(self.last):
            raise ValueError(f"dates are from {self.first} to {self.last}; expected first < last")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """The first and the last date, in days since the first of 1970."""
        return day_number(self.first), day_number(self.last)


def day_number(date: str) -> float:
    """Days from the first of 1970 to an ISO date. Raises `ValueError`."""
    try:
        return _days(date, ISO)
    except ValueError:
        raise ValueError(f'{date!r} is no date; expected one as "2019-12-31"') from None


def iso_date(days: float) -> str:
    """The ISO date of the day that is `days` after the first of 1970."""
    return str(np.datetime64(int(np.floor(days)), "D"))


def day_numbers(words: Words, format: str, missing: Collection[str], where: str) -> np.ndarray:
    """The days `[N]` since the first of 1970, NaN where a cell is empty.

    Raises `Refused` for a word that is no date of this form; `where` has a place for the `row`.
    """
    days = [_cell(value, format, missing) for value in words.values]
    if None in days:
        row = words.first_row(words.codes == days.index(None))
        raise Refused(
            f"{where.format(row=row)} holds no date of the form {format!r}; expected one (another "
            "form is data.dates' format; a word for nothing is one of data.missing_words)",
            private=f"it holds {words.shown(row)}",
        )
    return np.array([*days, np.nan], dtype=np.float64)[words.codes]


def parsed_days(values: Collection[str], format: str) -> list[float] | None:
    """The days of each of `values`; None where one of them has another form."""
    try:
        return [_days(value, format) for value in values]
    except (ValueError, OverflowError):
        return None


def _cell(value: str, format: str, missing: Collection[str]) -> float | None:
    """The day of one word, NaN where it counts as empty, None where it is no such date."""
    if value in missing:
        return np.nan
    days = parsed_days([value], format)
    return days[0] if days else None


def _days(text: str, format: str) -> float:
    when = datetime.fromisoformat(text) if format == ISO else datetime.strptime(text, format)
    if when.tzinfo is not None:
        when = when.astimezone(UTC).replace(tzinfo=None)
    return (when - _ORIGIN).total_seconds() / _DAY
