"""A user's table as a release over clients reads it: one vector of norm at most 1 per client."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from privfed.analytics.description_run import counting_run
from privfed.analytics.questions import ClientRows, chosen_rows
from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.core.streams import Streams
from privfed.core.vector import Indices
from privfed.data.federation import Examples, client_number
from privfed.data.sources.table import origins_of_file
from privfed.data.tables.cells import CellRules
from privfed.data.tables.columns import Columns
from privfed.data.tables.delimited import Dialect, known_encoding
from privfed.data.tables.missing import refuse_absent
from privfed.data.tables.readable import Readable, TableFile

Bools = NDArray[np.bool_]


class ClientVector(Protocol):
    """The vector of each client, of norm at most 1, from its counted rows."""

    @property
    def length(self) -> int:
        """The number of entries of the vector."""

    @property
    def zero_input(self) -> NDArray[Any]:
        """The input of the model, shape `[1, width]`, whose vector is zero."""

    def of_table(self, rows: ClientRows) -> NDArray[Any]:
        """Returns the input of the model from which each client's vector follows.

        Returns:
          Inputs, shape `[clients, width]`. Integers are indices of the counts to which a client
          adds, -1 for none.
        """


class ClientCounts(ClientVector, Protocol):
    """Counts, to each of which a client adds a public amount; the amounts have norm at most 1."""

    @property
    def amplitudes(self) -> NDArray[np.float64]:
        """The amount `[length]` that a client adds to each count to which it adds."""


class OneCell:
    """Counts of which each client adds 1 to exactly one; the last is for unusable entries."""

    zero_input = np.full((1, 1), -1)

    @property
    @abc.abstractmethod
    def length(self) -> int:
        """The number of cells, with that of unusable entries."""

    @property
    def amplitudes(self) -> NDArray[np.float64]:
        return np.ones(self.length)

    def counted(self, cells: Indices, usable: Bools, rows: ClientRows) -> Indices:
        """Returns the cell of each client, `[clients, 1]`, from those of all rows, `[N]`."""
        out = np.full((len(rows.sizes), 1), self.length - 1, dtype=np.int64)
        out[rows.clients, 0] = np.where(usable, cells, self.length - 1)[rows.chosen]
        return out


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
    def questions(self) -> ClientVector:
        """The vector of each client."""

    @property
    def one_round(self) -> bool:
        """Whether a release takes a single round."""
        return True

    @property
    def of_run(self) -> dict[str, Any]:
        """The keys of [run] of a release."""
        return {"rounds": 1}

    @property
    @abc.abstractmethod
    def of_model(self) -> dict[str, Any]:
        """The keys of [model] of a release, except the loss."""

    @property
    def of_server(self) -> dict[str, Any]:
        """The keys of [server] of a release."""
        return {"optimizer": "fedavg", "lr": 1.0}

    def release_of(self, config: Config) -> Config:
        """Returns the run that makes this table's release over the population of `config`.

        Its model, loss, optimizers, number of rounds, clipping norm and full participation follow
        from the table; a run that differs in one of them would release more, or something else.

        Args:
          config: a run over the table, with the population, budget, mechanism and secure sum.

        Raises:
          Refused: if these do not permit a release.
        """
        keys = {"source": config.names["source"], **self.model_dump()}
        return counting_run(config.raw(), keys, config.privacy)

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

    def refuse_several_cells(self) -> None:
        """Raises `ValueError` unless one row of a client counts, and columns are named once."""
        if self.rows_per_client != 1:
            raise ValueError("rows_per_client has to be 1: a client is one cell of the table")
        named = [name for names in self.requested().values() for name in names]
        named += [self.client, *filter(None, [self.site])]
        if len({*named}) < len(named):
            raise ValueError(f"columns are named twice in {', '.join(named)}; expected each once")

    def load(self, clients: int, streams: Streams) -> Examples:
        """Returns one example per client and site; the client draws its rows at random."""
        return self._loaded(TableFile(Path(self.path), self.dialect), streams)

    def load_from(self, table: Readable) -> Examples:
        """Returns one example per client of a site's `table`, from its first rows."""
        return self._loaded(table, None)

    def _loaded(self, table: Readable, streams: Streams | None) -> Examples:
        columns = self._columns(table)
        rules = CellRules(str(table), "clip", self.missing_words)
        owners, client_names = rules.owners(columns.words[self.client], repr(self.client))
        sites, site_names = np.zeros_like(owners), tuple[str, ...]()
        if self.site:
            sites, site_names = rules.sites(columns.words[self.site], repr(self.site))
        count = max(len(site_names), 1)
        entries, whose = np.unique(owners * count + sites, return_inverse=True)
        persons, at = np.divmod(entries, count)
        order = np.arange(len(whose), dtype=np.uint64)
        if streams is not None:
            numbers = np.array([client_number(name) for name in client_names])[persons]
            order = _order(whose, numbers, streams)
        chosen = chosen_rows(whose, order, self.rows_per_client)
        rows = ClientRows(columns.words, self.dialect, *chosen, np.bincount(whose))
        examples = replace(
            _examples(self.questions.of_table(rows)), owners=persons, clients=client_names
        )
        return replace(examples, sites=at, site_names=site_names) if self.site else examples

    def _columns(self, table: Readable) -> Columns:
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
        return self.declared_example() if self.test_path else None

    def declared_example(self) -> Examples:
        """Returns one synthetic example, whose vector is zero; no data are read."""
        return _examples(self.questions.zero_input)


def _order(whose: Indices, numbers: Indices, streams: Streams) -> np.ndarray:
    """Returns a random number per row `[N]`, from its client and its place in the client's rows."""
    by_client = np.argsort(whose, kind="stable")
    nth = np.empty_like(whose)
    nth[by_client] = np.arange(len(whose)) - np.searchsorted(whose[by_client], whose[by_client])
    with np.errstate(over="ignore"):
        rows = numbers[whose] + nth * np.int64(0x5851F42D4C957F2D)
    return streams.at("cohort/rows", 0, rows).per_client(1)[:, 0]


def _examples(inputs: NDArray[Any]) -> Examples:
    """Returns unlabelled examples for inputs `[n, width]`; indices begin at 1, and 0 is none."""
    indexed = inputs.dtype.kind == "i"
    x = torch.from_numpy(inputs + 1 if indexed else inputs.astype(np.float32))
    return Examples(x, torch.zeros(len(x), 1), classes=2)


def of_counts(counts: ClientCounts) -> dict[str, Any]:
    """Returns the keys of the model whose parameters are these counts."""
    stretches: list[list[float]] = []
    for amplitude in counts.amplitudes.tolist():
        if stretches and stretches[-1][1] == amplitude:
            stretches[-1][0] += 1
        else:
            stretches.append([1.0, amplitude])
    return {"name": "counts", "stretches": stretches}
