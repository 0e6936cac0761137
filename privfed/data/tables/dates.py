"""Dates as numbers: days since the first of 1970, which is a public constant and nobody's."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

import numpy as np
from pydantic import field_validator, model_validator

from privfed.data.tables.words import Words
from privfed.errors import Refused
from privfed.parts import Part

ISO = "iso"
_ORIGIN = datetime(1970, 1, 1)
_DAY = 86_400.0
_TRIED = datetime(2001, 2, 3, 4, 5, 6)


class Dates(Part):
    """A column of dates: from the `first` to the `last`, beyond which they are clipped.

    Both are written as ISO 8601 has it ("2019-12-31"). Cells are too, in any of its forms and with
    a time if need be, unless `format` says how they are (of `datetime.strptime`: "%d.%m.%Y"). Times
    that name their zone are taken to UTC.
    """

    first: str
    last: str
    format: str = ISO

    @field_validator("first", "last")
    @classmethod
    def _is_date(cls, value: str) -> str:
        day(value)
        return value

    @field_validator("format")
    @classmethod
    def _names_a_day(cls, value: str) -> str:
        try:
            same = value == ISO or _days(_TRIED.strftime(value), value) // 1 == _whole(_TRIED)
        except ValueError:
            same = False
        if not same:
            raise ValueError('expected "iso", or a form that names year, month and day: "%d.%m.%Y"')
        return value

    @model_validator(mode="after")
    def _in_order(self) -> Dates:
        if not day(self.first) < day(self.last):
            raise ValueError(f"dates are from {self.first} to {self.last}; expected first < last")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """The first and the last, in days."""
        return day(self.first), day(self.last)


def day(date: str) -> float:
    """Days from the first of 1970 to an ISO date. Raises `ValueError`."""
    try:
        return _days(date, ISO)
    except ValueError:
        raise ValueError(f'{date!r} is no date; expected one as "2019-12-31"') from None


def iso(days: float) -> str:
    """The date of that day."""
    return str(np.datetime64(int(np.floor(days)), "D"))


def numbers(words: Words, format: str, missing: Collection[str], where: str) -> np.ndarray:
    """Days `[N]`; NaN where there is nothing. Raises `Refused` for what is no such date."""
    found = [_cell(value, format, missing) for value in words.values]
    if None in found:
        row = words.first(words.codes == found.index(None))
        raise Refused(
            f"{where.format(row=row)} holds no date of the form {format!r}; expected one (another "
            "form is data.dates' format; a word for nothing is one of data.missing_words)",
            private=f"it holds {words.at(row)}",
        )
    return np.array([*found, np.nan], dtype=np.float64)[words.codes]


def parsed(values: Collection[str], format: str) -> list[float] | None:
    """Days of each of `values`; None where one of them has another form."""
    try:
        return [_days(value, format) for value in values]
    except (ValueError, OverflowError):
        return None


def _cell(value: str, format: str, missing: Collection[str]) -> float | None:
    if value in missing:
        return np.nan
    days = parsed([value], format)
    return days[0] if days else None


def _days(text: str, format: str) -> float:
    when = datetime.fromisoformat(text) if format == ISO else datetime.strptime(text, format)
    if when.tzinfo is not None:
        when = when.astimezone(UTC).replace(tzinfo=None)
    return (when - _ORIGIN).total_seconds() / _DAY


def _whole(when: datetime) -> float:
    return float((when - _ORIGIN).days)
