"""Replacement of empty cells by public constants: one for all columns, or one for each column."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal

from privfed.core.errors import Refused
from privfed.core.text import nearest
from privfed.data.tables.dates import day_number
from privfed.data.tables.readable import Readable


def refuse_absent(
    declared: Iterable[tuple[str, str]], names: Sequence[str], table: Readable
) -> None:
    """Raises `Refused` if `names` lacks a column of the pairs (key, column) in `declared`."""
    present = {*names}
    for key, name in declared:
        if name not in present:
            raise absent_column(key, name, names, table)


class AbsentColumn(Refused):
    """Raised if a table lacks a declared column, which does not depend on its rows."""


def absent_column(key: str, name: str, names: Sequence[str], table: Readable) -> AbsentColumn:
    """Returns the error for a column `name` that data.`key` declares, but `names` lacks."""
    close = nearest(name, names)
    suggestion = f"did you mean {close!r}? " if close else ""
    shown = ", ".join(names[:20]) + (", …" if names[20:] else "")
    return AbsentColumn(
        f"data.{key} names {name!r}, but {table} has no such column; expected one of the "
        f"{len(names)} names in {table.naming}{table.hint(names)}",
        private=f"{suggestion}its columns are {shown}",
    )


Missing = Literal["refuse"] | float | dict[str, float | str]
NO_CATEGORY = "none"


def refuse_misplaced(
    missing: Missing,
    features: Collection[str],
    dates: Collection[str],
    categories: Collection[str],
) -> None:
    """Raises `ValueError` if a key of `missing` is no declared column, or its value does not fit.

    A key may be a pattern in `features`, or the name of a column. The value of a feature must be a
    number, of a date a date as text, and of a category "none".
    """
    for key, value in missing.items() if isinstance(missing, dict) else ():
        if key in categories and key not in features:
            if value != NO_CATEGORY:
                raise ValueError(
                    f"missing.{key} is {value!r}, but {key!r} is a category; expected "
                    f'"{NO_CATEGORY}": an empty cell then counts as no category'
                )
        elif key in dates:
            if not isinstance(value, str):
                raise ValueError(
                    f"missing.{key} is {value!r}, but {key!r} holds dates; expected a date, as text"
                )
            day_number(value)
        elif key not in features and not any(fnmatchcase(key, name) for name in features):
            raise ValueError(
                f"missing names {key!r}, but that is no feature, date or category; remove the key"
            )
        elif isinstance(value, str):
            raise ValueError(
                f"missing.{key} is {value!r}, but {key!r} is a feature; expected a number"
            )


def empty_number(missing: Missing, *names: str) -> float | None:
    """Returns the number that replaces an empty cell of a column; None if the cell is refused.

    Args:
      missing: one number for all columns, replacements by column, or "refuse".
      names: the column's name and the pattern that declares it; the first that is a key of
        `missing` is used.
    """
    if isinstance(missing, Mapping):
        value = next((missing[name] for name in names if name in missing), None)
        return None if isinstance(value, str) else value
    return None if isinstance(missing, str) else missing


def empty_day(missing: Missing, name: str) -> float | None:
    """Returns the replacement, in days, of an empty cell of the column `name`.

    None if an empty cell is refused.
    """
    value = missing.get(name) if isinstance(missing, Mapping) else None
    return day_number(value) if isinstance(value, str) else None


def empty_is_no_category(missing: Missing, name: str) -> bool:
    """Whether an empty cell of the column `name` counts as no category; otherwise it is refused."""
    return name in missing if isinstance(missing, Mapping) else missing != "refuse"
