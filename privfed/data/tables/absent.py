"""Refusals of columns that are declared and that a table does not have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from privfed.data.tables.readable import Readable
from privfed.errors import Refused
from privfed.suggestions import nearest


def refuse_absent(
    declared: Iterable[tuple[str, str]], names: Sequence[str], table: Readable
) -> None:
    """Raise `Refused` for the first pair of key and column whose column is not in `names`."""
    for key, name in declared:
        if name not in names:
            raise absent_column(key, name, names, table)


def absent_column(key: str, name: str, names: Sequence[str], table: Readable) -> Refused:
    """The refusal of the column `name`, declared by `data.key`, which is not among the `names`."""
    close = nearest(name, names)
    suggestion = f"did you mean {close!r}? " if close else ""
    shown = ", ".join(names[:20]) + (", …" if names[20:] else "")
    return Refused(
        f"data.{key}: {table} has no column {name!r}; expected one of the {len(names)} that "
        f"{table.naming} names{table.hint(names)}",
        private=f"{suggestion}its columns are {shown}",
    )
