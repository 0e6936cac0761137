"""A table whose columns can be read by name: a file, or an object that was passed in Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from privfed.data.tables.arrow import as_arrow, table_names
from privfed.data.tables.columns import (
    Called,
    Columns,
    arrow_columns,
    column_names,
    read_columns,
    read_rows,
    refuse_repeated_names,
)
from privfed.data.tables.delimited import Dialect, delimiter_of

if TYPE_CHECKING:
    import pyarrow


class Readable(Protocol):
    """A table; `str` of it is its name in messages."""

    @property
    def dialect(self) -> Dialect:
        """The syntax of the table's cells, if they are text."""

    def names(self) -> list[str]:
        """Returns the column names, in the table's order. The names are private.

        Raises `Refused` if there is no column, or two with the same name.
        """

    def read(self, numbers: Called, words: Called) -> Columns:
        """Returns the columns `numbers` and `words`, which must exist.

        Raises `Refused` if the table cannot be read, or a column of `numbers` is not numeric.
        """

    @property
    def naming(self) -> str:
        """The place of the table's column names for messages, such as "the first row"."""

    def hint(self, names: Sequence[str]) -> str:
        """Returns a hint for a message about a column that is not among `names`; may be ""."""


@dataclass(frozen=True)
class TableFile:
    """The CSV, Parquet or npz file at `path`."""

    path: Path
    dialect: Dialect

    def __str__(self) -> str:
        return str(self.path)

    @property
    def naming(self) -> str:
        return "the first row"

    def names(self) -> list[str]:
        return column_names(self.path, self.dialect)

    def read(self, numbers: Called, words: Called) -> Columns:
        return read_columns(self.path, numbers, words, self.dialect)

    def hint(self, names: Sequence[str]) -> str:
        delimiter = delimiter_of(self.path, self.dialect.encoding) if len(names) == 1 else None
        divided = f"(cells seem to be divided by {delimiter!r}: set data.delimiter)"
        return f" {divided}" if delimiter else ""


@dataclass(frozen=True)
class TableRows(TableFile):
    """The rows of a CSV or Parquet file that the mask `among` `[N]` selects; all if it is None.

    Rows of a CSV file with too few or too many cells are skipped. `read_before` caches the tables
    that were read, with all rows, by the tuple of their columns' names.
    """

    among: np.ndarray | None = None
    read_before: dict[tuple[str, ...], pyarrow.Table] = field(default_factory=dict)

    def only(self, among: np.ndarray) -> TableRows:
        """Returns the same table, with only the rows that the mask `among` `[N]` selects."""
        return replace(self, among=among)

    def names(self) -> list[str]:
        return column_names(self.path, self.dialect, skips=True)

    def read(self, numbers: Called, words: Called) -> Columns:
        names = (*numbers, *words)
        if names not in self.read_before:
            self.read_before[names] = read_rows(self.path, names, self.dialect)
        table = self.read_before[names]
        rows = table if self.among is None else table.filter(self.among)
        return arrow_columns(rows, numbers, words, str(self.path), self.dialect)


@dataclass(frozen=True)
class TableObject:
    """A table of any library that was passed in Python; messages call it `called`.

    A column is converted only when it is read; columns that are not declared may be of any type.
    """

    table: Any
    called: str
    missing_words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.called

    @property
    def dialect(self) -> Dialect:
        return Dialect(missing_words=self.missing_words)

    @property
    def naming(self) -> str:
        return "it"

    def names(self) -> list[str]:
        names = table_names(self.table, self.called)
        refuse_repeated_names(names, self.called)
        return names

    def read(self, numbers: Called, words: Called) -> Columns:
        table = as_arrow(self.table, [*numbers, *words], self.called)
        return arrow_columns(table, numbers, words, self.called, self.dialect)

    def all_columns(self) -> pyarrow.Table:
        """Returns all columns. Raises `Refused` if one cannot be converted to Arrow."""
        return as_arrow(self.table, self.names(), self.called)

    def hint(self, names: Sequence[str]) -> str:
        return ""
