"""Converts dates to numbers: days since 1970-01-01, a public constant."""

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
    """A column of dates, clipped to the `first` and the `last`.

    Both are in ISO 8601 ("2019-12-31"). Cells are also in ISO 8601, in any form that
    `datetime.fromisoformat` reads and optionally with a time, unless `format` states another format
    of `datetime.strptime`. Times with a zone are converted to UTC.
    """

    first: str
    """The first day, in ISO 8601."""
    last: str
    """The last day, in ISO 8601."""
    format: str = ISO
    """Format of cells, for example "%d.%m.%Y"; ISO 8601 by default."""

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
            raise ValueError(
                'expected "iso", or a format with year, month and day, for example "%d.%m.%Y"'
            )
        return value

    @model_validator(mode="after")
    def _in_order(self) -> Dates:
        if not day_number(self.first) < day_number(self.last):
            raise ValueError(
                f"first is {self.first}, but last is {self.last}; expected first < last"
            )
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """The first and the last date, in days since 1970-01-01."""
        return day_number(self.first), day_number(self.last)


def day_number(date: str) -> float:
    """Returns the days from 1970-01-01 to an ISO date; a time of day adds a fraction.

    Raises `ValueError` if `date` is not an ISO date.
    """
    try:
        return _days(date, ISO)
    except ValueError:
        raise ValueError(f'{date!r} is not a date; expected the form "2019-12-31"') from None


def iso_date(days: float) -> str:
    """Returns the ISO date of the day that is `days` after 1970-01-01."""
    return str(np.datetime64(int(np.floor(days)), "D"))


def day_numbers(words: Words, format: str, missing: Collection[str], where: str) -> np.ndarray:
    """Converts a column of dates to days since 1970-01-01 `[N]`; NaN for empty cells.

    Args:
      words: the column.
      format: "iso", or a format of `datetime.strptime`.
      missing: words that count as empty cells.
      where: name of a cell in messages, with a placeholder {row}.

    Raises:
      Refused: if a cell is not a date in this format.
    """
    days = [_cell(value, format, missing) for value in words.values]
    if None in days:
        row = words.first_row(words.codes == days.index(None))
        raise Refused(
            f"{where.format(row=row)} is not a date in the format {format!r}; correct that cell, "
            "declare another format in data.dates, or list words for empty cells in "
            "data.missing_words",
            private=f"it holds {words.shown(row)}",
        )
    return np.array([*days, np.nan], dtype=np.float64)[words.codes]


def parsed_days(values: Collection[str], format: str) -> list[float] | None:
    """Returns the days since 1970-01-01 of each of `values`; None if a value has another format."""
    try:
        return [_days(value, format) for value in values]
    except (ValueError, OverflowError):
        return None


def _cell(value: str, format: str, missing: Collection[str]) -> float | None:
    """Returns the day number of `value`; NaN if it is in `missing`, None if it is no such date."""
    if value in missing:
        return np.nan
    days = parsed_days([value], format)
    return days[0] if days else None


def _days(text: str, format: str) -> float:
    when = datetime.fromisoformat(text) if format == ISO else datetime.strptime(text, format)
    if when.tzinfo is not None:
        when = when.astimezone(UTC).replace(tzinfo=None)
    return (when - _ORIGIN).total_seconds() / _DAY
