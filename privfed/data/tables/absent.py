"""Refusals of columns that are declared and that a file does not have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from privfed.data.tables.delimited import delimiter_of
from privfed.errors import Refused
from privfed.suggestions import nearest


def refuse_absent(
    declared: Iterable[tuple[str, str]], names: Sequence[str], path: Path, encoding: str
) -> None:
    """Raise `Refused` for the first pair of key and column whose column is not in `names`."""
    for key, name in declared:
        if name not in names:
            raise absent_column(key, name, names, path, encoding)


def absent_column(key: str, name: str, names: Sequence[str], path: Path, encoding: str) -> Refused:
    """The refusal of the column `name`, declared by `data.key`, which is not among the `names`."""
    close = nearest(name, names)
    suggestion = f"did you mean {close!r}? " if close else ""
    delimiter = delimiter_of(path, encoding) if len(names) == 1 else None
    hint = f" (they seem to be divided by {delimiter!r}: set data.delimiter)" if delimiter else ""
    shown = ", ".join(names[:20]) + (", …" if names[20:] else "")
    return Refused(
        f"data.{key}: {path} has no column {name!r}; expected one of the {len(names)} that its "
        f"first row names{hint}",
        private=f"{suggestion}its columns are {shown}",
    )
