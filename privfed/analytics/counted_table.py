"""A user's table as a release over clients reads it: one vector of counts for each client."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from privfed.analytics.questions import chosen_rows
from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.core.streams import Streams
from privfed.core.vector import Indices
from privfed.data.federation import Examples, client_number
from privfed.data.sources.table import origins_of_file
from privfed.data.tables.cells import CellRules, Words
from privfed.data.tables.columns import Columns
from privfed.data.tables.delimited import Dialect, known_encoding
from privfed.data.tables.missing import refuse_absent
from privfed.data.tables.readable import TableFile


class ClientCounts(Protocol):
    """The counts of one release, to which each client adds public amounts of norm at most 1."""

    @property
    def length(self) -> int:
        """The number of counts."""

    @property
    def width(self) -> int:
        """The largest number of counts to which a client adds."""

    @property
    def amplitudes(self) -> NDArray[np.float64]:
        """The amount `[length]` that a client adds to each count to which it adds."""

    def of_table(
        self,
        columns: Mapping[str, Words],
        dialect: Dialect,
        chosen: Indices,
        clients: Indices,
        sizes: Indices,
    ) -> Indices:
        """Returns the indices of the counts to which each client adds.

        Args:
          columns: the requested columns by name.
          dialect: the format of the table.
          chosen: the rows that count, shape `[r]`.
          clients: the client of each such row, ascending, shape `[r]`.
          sizes: number of rows of each client, shape `[clients]`.

        Returns:
          Indices, shape `[clients, width]`, -1 for none.
        """


MOST_CELLS = 10_000
"""Largest number of cells of a table in which each client is one cell."""


def refuse_many(cells: int, fewer: str) -> None:
    """Raises `ValueError` if there are too many cells; `fewer` names what to reduce."""
    if cells > MOST_CELLS:
        raise ValueError(
            f"there are {cells} cells, but at most {MOST_CELLS:,} are counted; expected fewer "
            f"{fewer}"
        )


def refuse_unordered(edges: Sequence[float]) -> None:
    """Raises `ValueError` unless the ends of bins are finite and ascending."""
    if not all(map(math.isfinite, edges)) or any(low >= high for low, high in pairwise(edges)):
        raise ValueError(f"the bins' ends are {[*edges]}; expected finite ascending numbers")


class CountedTable(Part):
    """A table of which each client contributes to public counts, by at most `rows_per_client` rows.

    Names of columns are taken to be public, as in any run file.
    """

    path: str
    client: str = Field(min_length=1)
    site: str = ""
    delimiter: str = Field(",", min_length=1, max_length=1)
    decimal: Literal[".", ","] = "."
    encoding: Annotated[str, AfterValidator(known_encoding)] = "utf-8"
    test_path: str = ""
    missing_words: list[str] = []
    rows_per_client: int = Field(1, ge=1, le=1000)
    """Largest number of rows of a client that are counted."""
    earlier: list[str] = []
    """Earlier runs (privacy.prior of the run file) that a declared run file counts, next to this
    release."""
    purpose: ClassVar[str] = "statistics"
    natural_partition: ClassVar[bool] = True
    holds_real_clients: ClassVar[bool] = True
    storage_keys: ClassVar[frozenset[str]] = frozenset({"site"})

    @property
    @abc.abstractmethod
    def questions(self) -> ClientCounts:
        """The counts to which each client adds."""

    @abc.abstractmethod
    def requested(self) -> Mapping[str, Iterable[str]]:
        """Returns the columns that are counted, by the key of [data] that names them."""

    @property
    def squared_norm(self) -> float | None:
        return None

    @property
    def dialect(self) -> Dialect:
        """The format of the table's files."""
        return Dialect(self.delimiter, self.encoding, self.decimal, tuple(self.missing_words))

    def sources(self, seed: int) -> tuple[str, ...]:
        """Returns the origins that the same table has as a source of training examples."""
        return origins_of_file(self.client, self.path)

    def refuse_several_cells(self, counted: Iterable[str]) -> None:
        """Raises `ValueError` unless a client is one cell of `counted` columns, named once each."""
        if self.rows_per_client != 1:
            raise ValueError("rows_per_client has to be 1: a client is one cell of the table")
        named = [*counted, self.client, *filter(None, [self.site])]
        if len({*named}) < len(named):
            raise ValueError(f"columns are named twice in {', '.join(named)}; expected each once")

    def load(self, clients: int, streams: Streams) -> Examples:
        """Returns one example per client and site: indices of the counts to which its rows add."""
        table, questions = TableFile(Path(self.path), self.dialect), self.questions
        columns = self._columns(table)
        rules = CellRules(str(table), "clip", self.missing_words)
        owners, client_names = rules.owners(columns.words[self.client], repr(self.client))
        sites, site_names = np.zeros_like(owners), tuple[str, ...]()
        if self.site:
            sites, site_names = rules.sites(columns.words[self.site], repr(self.site))
        count = max(len(site_names), 1)
        entries, whose = np.unique(owners * count + sites, return_inverse=True)
        persons, at = np.divmod(entries, count)
        numbers = np.array([client_number(name) for name in client_names])[persons]
        order = _order(whose, numbers, streams)
        chosen, clients_of = chosen_rows(whose, order, self.rows_per_client)
        x = questions.of_table(columns.words, self.dialect, chosen, clients_of, np.bincount(whose))
        examples = replace(_examples(x), owners=persons, clients=client_names)
        return replace(examples, sites=at, site_names=site_names) if self.site else examples

    def _columns(self, table: TableFile) -> Columns:
        """Returns the requested and identifying columns. Raises `Refused` if one is absent."""
        keys = {**self.requested(), "client": [self.client]}
        keys |= {"site": [self.site]} if self.site else {}
        questions = [(key, name) for key, names in keys.items() for name in names]
        refuse_absent(questions, table.names(), table)
        columns = table.read({}, {name: repr(name) for _, name in questions})
        if not columns.rows:
            raise Refused(f"data: {table} holds no row; expected one row or more")
        return columns

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        """Returns one synthetic example if a public table is declared; it is never scored."""
        if not self.test_path:
            return None
        return _examples(np.full((1, self.questions.width), -1, dtype=np.int64))


def _order(whose: Indices, numbers: Indices, streams: Streams) -> np.ndarray:
    """Returns a random number per row `[N]`, from its client and its place in the client's rows."""
    by_client = np.argsort(whose, kind="stable")
    nth = np.empty_like(whose)
    nth[by_client] = np.arange(len(whose)) - np.searchsorted(whose[by_client], whose[by_client])
    with np.errstate(over="ignore"):
        rows = numbers[whose] + nth * np.int64(0x5851F42D4C957F2D)
    return streams.at("cohort/rows", 0, rows).per_client(1)[:, 0]


def _examples(places: Indices) -> Examples:
    """Returns unlabelled examples for indices of counts `[n, width]`, where -1 is no count."""
    x = torch.from_numpy(places + 1)
    return Examples(x, torch.zeros(len(x), 1), classes=2)
