"""A table that was passed in Python, or clients' arrays as one, with everything declared."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from pydantic import Field

from privfed.data.federation import Examples
from privfed.data.sources.declared_table import DeclaredTable
from privfed.data.tables.readable import Readable
from privfed.errors import Refused
from privfed.parts import part_around
from privfed.streams import Streams


class GivenTable(DeclaredTable):
    """A table that was passed in Python, with `declared` columns as those of `table`.

    `shape` is that of one example, where its one feature is an array. The table itself is stored
    nowhere: whoever goes on with its run passes it again.
    """

    shape: list[Annotated[int, Field(ge=1)]] = []
    rows: ClassVar[Readable | None] = None
    test: ClassVar[Readable | None] = None
    kept_by_user: ClassVar[bool] = True

    @classmethod
    def of(cls, rows: Readable, test: Readable | None = None) -> type[GivenTable]:
        """The source whose people are `rows`, beside a public table `test`, if any."""
        return part_around(cls, cls, rows=rows, test=test)

    @property
    def squared_norm(self) -> float | None:
        """The number of columns, as of any table, or of the array's numbers."""
        return float(math.prod(self.shape)) if self.shape else super().squared_norm

    def sources(self, seed: int) -> tuple[str, ...]:
        """The client column, as of a table in a file; and any table: who knows where it lies."""
        return (f"table: {self.client}", "table*")

    def load(self, clients: int, streams: Streams) -> Examples:
        return self.load_from(self._at_hand())

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        self._at_hand()
        return self.load_from(self.test, anybody=True) if self.test else None

    def load_inputs(self) -> Examples:
        """The rows of a table to predict, which may have neither labels nor the client column."""
        return self.load_from(self._at_hand(), label_free=True)

    def _at_hand(self) -> Readable:
        """The table. Raises `Refused` where it was not passed again."""
        if self.rows is None:
            raise Refused(
                "the people of this run were passed as an object, which a run directory does not "
                "store: in Python, pass them again, privfed.load(path, data=people)"
            )
        return self.rows
