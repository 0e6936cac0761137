"""A table of the user's own in a file: CSV, Parquet or npz."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from privfed.core.errors import Refused
from privfed.core.parts import part_around
from privfed.core.streams import Streams
from privfed.data.federation import Examples
from privfed.data.sources.declared_table import DeclaredTable
from privfed.data.tables.delimited import Dialect, known_encoding
from privfed.data.tables.readable import Readable, TableFile


class GivenTable(DeclaredTable):
    """A table that was passed in Python, with columns declared as those of `table`.

    `shape` is that of one example, if its one feature is an array. The table itself is not stored:
    it has to be passed again to resume its run.
    """

    shape: list[Annotated[int, Field(ge=1)]] = []
    rows: ClassVar[Readable | None] = None
    test: ClassVar[Readable | None] = None
    kept_by_user: ClassVar[bool] = True

    @classmethod
    def of(cls, rows: Readable, test: Readable | None = None) -> type[GivenTable]:
        """The source with the rows `rows`, and a public table `test`, if any."""
        return part_around(cls, cls, rows=rows, test=test)

    @property
    def squared_norm(self) -> float | None:
        """The number of columns, as for any table, or of the array's numbers."""
        return float(math.prod(self.shape)) if self.shape else super().squared_norm

    def sources(self, seed: int) -> tuple[str, ...]:
        """The client column; and any table, since its location is unknown."""
        return (f"table: {self.client}", "table*")

    def load(self, clients: int, streams: Streams) -> Examples:
        return self.load_from(self._at_hand())

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        self._at_hand()
        return self.load_from(self.test, anybody=True) if self.test else None

    def load_inputs(self) -> Examples:
        """The rows of a table to predict, which may lack labels and the client column."""
        return self.load_from(self._at_hand(), label_free=True)

    def _at_hand(self) -> Readable:
        """Returns the table. Raises `Refused` if it was not passed again."""
        if self.rows is None:
            raise Refused(
                "the data of this run were passed as an object, which a run directory does not "
                "store; in Python, pass the object again by privfed.load(path, data=population)"
            )
        return self.rows


class Table(DeclaredTable):
    """A table in a CSV, Parquet or npz file. x `[N, features]` in [-1, 1].

    An npz may hold images `[N, *shape]`.

    `features` maps columns (or patterns, "pixel*") to their bounds [low, high], from which they are
    scaled, `dates` to their first and last day; `categories` maps columns to their values, one 0/1
    feature each. `outside` is the treatment of a number beyond its bounds or an undeclared value
    ("clip": the bound, or no category; "refuse").

    `missing` is the replacement of an empty cell: "refuse", a number for all features (and then
    none of its values for a category), or a table by column: a number, a date, or "none" for a
    category. `missing_words` are further empty cells, as "unknown". `encoding`, `delimiter` and
    `decimal` are those of a CSV.

    `label` is one column, with `labels` (its values by name), `classes` (integers from 0) or
    `label_bounds` (a number to predict); or several columns of 0 and 1. `client` names the column
    of clients; without it, partition the rows by "iid" or another simulation. `site` names the
    column of sites. A number to predict is also clipped to its bounds, and scored like that: choose
    them wide enough. `test_path` is a public table with the same columns.
    """

    path: str = Field(examples=["."])
    """A CSV, Parquet or npz file."""
    delimiter: str = Field(",", min_length=1, max_length=1)
    """Delimiter between the cells of a CSV."""
    decimal: Literal[".", ","] = "."
    """Decimal mark of a CSV."""
    encoding: Annotated[str, AfterValidator(known_encoding)] = "utf-8"
    """Encoding of a CSV."""
    test_path: str = ""
    """A public table with the same columns, to score on."""

    @property
    def squared_norm(self) -> float | None:
        """The number of columns, as for any table; None for an npz, which may hold arrays."""
        return None if Path(self.path).suffix.lower() == ".npz" else super().squared_norm

    def sources(self, seed: int) -> tuple[str, ...]:
        """The client column, at any location; and the location, for any client column."""
        return origins_of_file(self.client, self.path)

    def load(self, clients: int, streams: Streams) -> Examples:
        return self.load_from(self._file(self.path))

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        if not self.test_path:
            return None
        return self.load_from(self._file(self.test_path), anybody=True)

    def load_inputs(self) -> Examples:
        """The rows of a table to predict, which may lack labels and the client column."""
        return self.load_from(self._file(self.path), label_free=True)

    @property
    def dialect(self) -> Dialect:
        """The dialect of its files."""
        return Dialect(self.delimiter, self.encoding, self.decimal, tuple(self.missing_words))

    def _file(self, path: str) -> TableFile:
        return TableFile(Path(path), self.dialect)


def origins_of_file(client: str, path: str) -> tuple[str, ...]:
    """The origins of the examples of a table in a file: its client column, and its location."""
    place = hashlib.sha256(str(Path(path).resolve()).encode()).hexdigest()
    return (f"table: {client}", f"table at {place[:16]}")
