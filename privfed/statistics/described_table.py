"""A table of the user's own as a release of statistics asks for it: one vector for each client."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import AfterValidator, Field, model_validator

from privfed.data.federation import Examples, client_number
from privfed.data.sources.declared_table import Bounds
from privfed.data.sources.table import origins_of_file
from privfed.data.tables.absent import refuse_absent
from privfed.data.tables.cells import CellRules
from privfed.data.tables.dates import Dates
from privfed.data.tables.delimited import Dialect, known_encoding
from privfed.data.tables.readable import TableFile
from privfed.errors import Refused
from privfed.parts import Part
from privfed.statistics.asked import Asked, chosen_rows
from privfed.statistics.questions import ColumnQuestion, NumbersAsked, as_values
from privfed.statistics.spelling import Spelling
from privfed.streams import Streams
from privfed.vector import Indices

ROWS_PER_CLIENT = 1


class DescribedTable(Part):
    """What is asked of the columns of a table in a file, about `rows_per_client` rows of each
    client at most.

    Of `columns` nothing is declared; `ranges`, `dates` and `values` are those of a run file's
    [data.features], [data.dates] and [data.categories], and are as public. Names of columns are
    taken for public, too, as in any run file.
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
    """Columns of which nothing is declared."""
    ranges: dict[str, Bounds] = {}
    """Columns of numbers, and their bounds [low, high]."""
    dates: dict[str, Dates] = {}
    """Columns of dates, and their first and last day."""
    values: dict[str, list[str | int | bool]] = {}
    """Columns of words, and their values."""
    rows_per_client: int = Field(ROWS_PER_CLIENT, ge=1, le=1000)
    """How many rows of a client count, at most."""
    buckets: int = Field(32, ge=1, le=4096)
    """Into so many buckets fall words that nobody listed."""
    letters: int = Field(12, ge=1, le=64)
    """So many of their first bytes are read."""
    natural_partition: ClassVar[bool] = True
    real_people: ClassVar[bool] = True
    whereabouts: ClassVar[frozenset[str]] = frozenset({"site"})

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
    def asked(self) -> Asked:
        """What each client is asked."""
        spelling = Spelling(self.buckets, self.letters)
        questions: list[ColumnQuestion] = [
            *(NumbersAsked(name, spelling=spelling) for name in self.columns),
            *(NumbersAsked(name, (low, high)) for name, (low, high) in self.ranges.items()),
            *(NumbersAsked(name, each.bounds, each.format) for name, each in self.dates.items()),
            *(as_values(name, values) for name, values in self.values.items()),
        ]
        return Asked(tuple(questions), self.rows_per_client)

    @property
    def squared_norm(self) -> float | None:
        return None

    @property
    def dialect(self) -> Dialect:
        """How its files are written."""
        return Dialect(self.delimiter, self.encoding, self.decimal, tuple(self.missing_words))

    def sources(self, seed: int) -> tuple[str, ...]:
        """Those of the same table where a model is trained on it."""
        return origins_of_file(self.client, self.path)

    def load(self, clients: int, streams: Streams) -> Examples:
        """One example for each client (at each of its sites): the counts that its rows add to."""
        table, asked, holders = TableFile(Path(self.path), self.dialect), self.asked, self._holders
        names = table.names()
        refuse_absent([("columns", q.name) for q in asked.questions], names, table)
        refuse_absent(holders, names, table)
        described = [question.name for question in asked.questions]
        columns = table.read(
            {}, {name: repr(name) for name in [*described, *dict(holders).values()]}
        )
        if not columns.rows:
            raise Refused(f"data: {table} holds no row")
        rules = CellRules(str(table), "clip", self.missing_words)
        owners, people = rules.owners(columns.words[self.client], repr(self.client))
        sites, names_of_sites = np.zeros_like(owners), people[:1]
        if self.site:
            sites, names_of_sites = rules.sites(columns.words[self.site], repr(self.site))
        entries, whose = np.unique(owners * len(names_of_sites) + sites, return_inverse=True)
        of_person, at_site = np.divmod(entries, len(names_of_sites))
        numbers = np.array([client_number(name) for name in people])[of_person]
        chosen, clients_of = chosen_rows(
            whose, _order(whose, numbers, streams), self.rows_per_client
        )
        places = [q.places(columns.words[q.name], self.dialect) for q in asked.questions]
        x = asked.of_clients(places, chosen, clients_of, np.bincount(whose))
        examples = _examples(x)
        return replace(
            examples,
            owners=of_person,
            clients=people,
            sites=at_site if self.site else None,
            site_names=names_of_sites if self.site else (),
        )

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        """One made-up example, where a public table is declared: statistics are scored on none."""
        if not self.test_path:
            return None
        return _examples(np.full((1, self.asked.width), -1, dtype=np.int64))

    @property
    def _holders(self) -> list[tuple[str, str]]:
        """Keys and columns that say whose a row is, and where."""
        return [("client", self.client), *([("site", self.site)] if self.site else [])]


def _order(whose: Indices, numbers: Indices, streams: Streams) -> np.ndarray:
    """A random word for each row `[N]`, by its client's own coins and its place among its own."""
    by_client = np.argsort(whose, kind="stable")
    nth = np.empty_like(whose)
    nth[by_client] = np.arange(len(whose)) - np.searchsorted(whose[by_client], whose[by_client])
    with np.errstate(over="ignore"):
        rows = numbers[whose] + nth * np.int64(0x5851F42D4C957F2D)
    return streams.at("cohort/rows", 0, rows).per_client(1)[:, 0]


def _examples(places: Indices) -> Examples:
    """Examples of these counts `[n, width]`, -1 for none, which have no label."""
    x = torch.from_numpy(places + 1)
    return Examples(x, torch.zeros(len(x), 1), classes=2)
