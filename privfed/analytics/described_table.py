"""A user's table as a release of statistics reads it: one vector for each client."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import AfterValidator, Field, model_validator

from privfed.analytics.questions import (
    ColumnQuestion,
    NumbersQuestion,
    Questions,
    as_values,
    chosen_rows,
)
from privfed.analytics.spelling import Spelling
from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.core.streams import Streams
from privfed.core.vector import Indices
from privfed.data.federation import Examples, client_number
from privfed.data.sources.declared_table import Bounds
from privfed.data.sources.table import origins_of_file
from privfed.data.tables.cells import CellRules
from privfed.data.tables.columns import Columns
from privfed.data.tables.dates import Dates
from privfed.data.tables.delimited import Dialect, known_encoding
from privfed.data.tables.missing import refuse_absent
from privfed.data.tables.readable import TableFile

ROWS_PER_CLIENT = 1


class DescribedTable(Part):
    """A table whose columns are counted, over at most `rows_per_client` rows per client.

    Nothing is declared about `columns`. The keys `ranges`, `dates` and `values` are those of a run
    file's [data.features], [data.dates] and [data.categories]. Like these, they are public. Names
    of columns are taken to be public, too, as in any run file.
    """

    path: str
    client: str = Field(min_length=1)
    site: str = ""
    delimiter: str = Field(",", min_length=1, max_length=1)
    decimal: Literal[".", ","] = "."
    encoding: Annotated[str, AfterValidator(known_encoding)] = "utf-8"
    test_path: str = ""
    missing_words: list[str] = []
    columns: list[str] = []
    """Columns about which nothing is declared."""
    ranges: dict[str, Bounds] = {}
    """Columns of numbers, and their bounds [low, high]."""
    dates: dict[str, Dates] = {}
    """Columns of dates, and their first and last day."""
    values: dict[str, list[str | int | bool]] = {}
    """Columns of words, and their declared values."""
    rows_per_client: int = Field(ROWS_PER_CLIENT, ge=1, le=1000)
    """Largest number of rows of a client that are counted."""
    buckets: int = Field(32, ge=1, le=4096)
    """Number of buckets for words that were not listed."""
    letters: int = Field(12, ge=1, le=64)
    """Number of leading bytes that are recovered of words that were not listed."""
    earlier: list[str] = []
    """Earlier runs (privacy.prior of the run file) that a declared run file counts, next to this
    release."""
    natural_partition: ClassVar[bool] = True
    holds_real_clients: ClassVar[bool] = True
    storage_keys: ClassVar[frozenset[str]] = frozenset({"site"})

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [*self.columns, *self.ranges, *self.dates, *self.values]
        if not names:
            raise ValueError("name at least one column to describe")
        repeated = {name for name in names if names.count(name) > 1}
        if twice := sorted(repeated | {*names} & {self.client, self.site}):
            raise ValueError(f"{twice[0]!r} is named twice; expected each column once")
        for name, (low, high) in self.ranges.items():
            if not low < high:
                raise ValueError(
                    f"the bounds of {name!r} are [{low:g}, {high:g}]; expected low < high"
                )
        return self

    @property
    def questions(self) -> Questions:
        """The questions that each client answers."""
        spelling = Spelling(self.buckets, self.letters)
        questions: list[ColumnQuestion] = [
            *(NumbersQuestion(name, spelling=spelling) for name in self.columns),
            *(NumbersQuestion(name, (low, high)) for name, (low, high) in self.ranges.items()),
            *(NumbersQuestion(name, each.bounds, each.format) for name, each in self.dates.items()),
            *(as_values(name, values) for name, values in self.values.items()),
        ]
        return Questions(tuple(questions), self.rows_per_client)

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
        places = [q.places(columns.words[q.name], self.dialect) for q in questions.questions]
        x = questions.of_clients(places, chosen, clients_of, np.bincount(whose))
        examples = replace(_examples(x), owners=persons, clients=client_names)
        return replace(examples, sites=at, site_names=site_names) if self.site else examples

    def _columns(self, table: TableFile) -> Columns:
        """Returns the requested and identifying columns. Raises `Refused` if one is absent."""
        keys = {"columns": self.columns, "features": self.ranges, "dates": self.dates}
        keys |= {"categories": self.values, "client": [self.client]}
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
