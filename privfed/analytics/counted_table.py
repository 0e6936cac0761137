"""A user's table as a release over clients reads it: one vector of norm at most 1 per client.

A table counts some rows of each client (at most `rows_per_client`), here called counted rows.
"""

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
    """Computes the inputs of a model from a table, and with them each client's vector, of norm at
    most 1.

    The model turns a client's input into its vector (`privfed.analytics.count_model`).
    """

    @property
    def length(self) -> int:
        """The number of entries of a client's vector."""

    @property
    def zero_input(self) -> NDArray[Any]:
        """The model input for which the client's vector is zero, shape `[1, width]`."""

    def of_table(self, rows: ClientRows) -> NDArray[Any]:
        """Returns the model inputs from which the clients' vectors follow.

        Returns:
          Inputs, shape `[clients, width]`. If they are integers, they are indices, from 0, of the
          counts to which a client adds; -1 marks an unused entry.
        """


class ClientCounts(ClientVector, Protocol):
    """A client's vector whose entries are counts.

    A client adds a public amount to each of some counts; the vector of these amounts has norm at
    most 1.
    """

    @property
    def amplitudes(self) -> NDArray[np.float64]:
        """The amount that a client adds to a count, for each count, shape `[length]`."""


class OneCell:
    """Counts of clients by cell: each client adds 1 to exactly one cell.

    The last cell counts the clients whose row has no usable entries.
    """

    zero_input = np.full((1, 1), -1)

    @property
    @abc.abstractmethod
    def length(self) -> int:
        """The number of cells, including the one for rows without usable entries."""

    @property
    def amplitudes(self) -> NDArray[np.float64]:
        return np.ones(self.length)

    def counted(self, cells: Indices, usable: Bools, rows: ClientRows) -> Indices:
        """Returns each client's cell, shape `[clients, 1]`.

        A client without a counted row, or whose row is not usable, is in the last cell.

        Args:
          cells: cell of every row of the table, shape `[N]`.
          usable: mask of the rows with usable entries, shape `[N]`.
          rows: the counted rows, at most one per client.
        """
        out = np.full((len(rows.sizes), 1), self.length - 1, dtype=np.int64)
        out[rows.clients, 0] = np.where(usable, cells, self.length - 1)[rows.chosen]
        return out


MOST_CELLS = 10_000
"""Largest permitted number of cells of a table in which each client is one cell."""


def refuse_many(cells: int, fewer: str) -> None:
    """Raises `ValueError` if the number `cells` exceeds `MOST_CELLS`.

    `fewer` names, for the message, what to reduce, such as "covariates or levels".
    """
    if cells > MOST_CELLS:
        raise ValueError(
            f"there are {cells} cells, but at most {MOST_CELLS:,} are counted; expected fewer "
            f"{fewer}"
        )


def refuse_unordered(edges: Sequence[float]) -> None:
    """Raises `ValueError` unless the ends of bins are finite and strictly ascending."""
    if not all(map(math.isfinite, edges)) or any(low >= high for low, high in pairwise(edges)):
        raise ValueError(f"the bins' ends are {[*edges]}; expected finite ascending numbers")


class CountedTable(Part):
    """A table as a data source of a release: each client contributes one vector of norm at most 1.

    At most `rows_per_client` rows of a client contribute to its vector. Names of columns are taken
    to be public, as in any run file.
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
    """Largest number of a client's rows that are counted."""
    earlier: list[str] = []
    """Run directories of earlier releases over the population (privacy.prior of the run file). A
    run file that is written from this release names them, and the release, in its privacy.prior."""
    purpose: ClassVar[str] = "statistics"
    natural_partition: ClassVar[bool] = True
    holds_real_clients: ClassVar[bool] = True
    storage_keys: ClassVar[frozenset[str]] = frozenset({"site"})

    @property
    @abc.abstractmethod
    def questions(self) -> ClientVector:
        """The columns and cells to count, from which each client's vector follows."""

    @property
    def one_round(self) -> bool:
        """Whether the release takes exactly one round; by default it does."""
        return True

    @property
    def of_run(self) -> dict[str, Any]:
        """The keys and values of [run] for the release; by default, one round."""
        return {"rounds": 1}

    @property
    @abc.abstractmethod
    def of_model(self) -> dict[str, Any]:
        """The keys and values of [model] for the release, except `loss`."""

    @property
    def of_server(self) -> dict[str, Any]:
        """The keys and values of [server] for the release; by default, plain averaging."""
        return {"optimizer": "fedavg", "lr": 1.0}

    def release_of(self, config: Config) -> Config:
        """Returns the configuration of the run that makes this table's release.

        The table determines the run's model, loss, optimizers, number of rounds, clipping norm and
        full participation. A run that differs in one of them would release more, or something else.

        Args:
          config: a run over this table, which states the population, budget, mechanism and secure
            sum.

        Raises:
          Refused: if the population, mechanism or budget do not permit a release.
        """
        keys = {"source": config.names["source"], **self.model_dump()}
        return counting_run(config.raw(), keys, config.privacy)

    @abc.abstractmethod
    def requested(self) -> Mapping[str, Iterable[str]]:
        """Returns the names of the counted columns, by the key of [data] that lists them."""

    @property
    def squared_norm(self) -> float | None:
        return None

    @property
    def dialect(self) -> Dialect:
        """The format of the table's files: delimiter, encoding, decimal mark and words for empty
        entries.
        """
        return Dialect(self.delimiter, self.encoding, self.decimal, tuple(self.missing_words))

    def sources(self, seed: int) -> tuple[str, ...]:
        """Returns two identifiers of the data's origin: its column of clients and a hash of `path`.

        A training source on this table has the same ones. `seed` has no effect.
        """
        return origins_of_file(self.client, self.path)

    def refuse_several_cells(self) -> None:
        """Raises `ValueError` if `rows_per_client` is not 1, or if two of the requested columns,
        the column of clients and that of sites are the same.
        """
        if self.rows_per_client != 1:
            raise ValueError("rows_per_client has to be 1: a client is one cell of the table")
        named = [name for names in self.requested().values() for name in names]
        named += [self.client, *filter(None, [self.site])]
        if len({*named}) < len(named):
            raise ValueError(f"columns are named twice in {', '.join(named)}; expected each once")

    def load(self, clients: int, streams: Streams) -> Examples:
        """Reads the table and returns one example per client, or per client and site if `site` is
        set.

        If a client has more than `rows_per_client` rows, the counted ones are chosen at random, by
        `streams`. `clients` has no effect.
        """
        return self._loaded(TableFile(Path(self.path), self.dialect), streams)

    def load_from(self, table: Readable) -> Examples:
        """Returns one example per client of a site's `table`.

        If a client has more than `rows_per_client` rows, its first ones in `table` are counted.
        """
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
        """Returns the requested columns and those of clients and sites.

        Raises `Refused` if a column is absent or the table is empty.
        """
        keys = {**self.requested(), "client": [self.client]}
        keys |= {"site": [self.site]} if self.site else {}
        questions = [(key, name) for key, names in keys.items() for name in names]
        refuse_absent(questions, table.names(), table)
        columns = table.read({}, {name: repr(name) for _, name in questions})
        if not columns.rows:
            raise Refused(f"data: {table} holds no row; expected one row or more")
        return columns

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        """Returns one synthetic example if `test_path` is set, else None. The example is never
        scored.
        """
        return self.declared_example() if self.test_path else None

    def declared_example(self) -> Examples:
        """Returns one synthetic example, whose vector is zero. Reads no data."""
        return _examples(self.questions.zero_input)


def _order(whose: Indices, numbers: Indices, streams: Streams) -> np.ndarray:
    """Returns a random number per row `[N]`, by which a client's rows are ordered.

    The number depends on the client's number, `numbers[whose]`, and on the row's index among the
    client's rows.
    """
    by_client = np.argsort(whose, kind="stable")
    nth = np.empty_like(whose)
    nth[by_client] = np.arange(len(whose)) - np.searchsorted(whose[by_client], whose[by_client])
    with np.errstate(over="ignore"):
        rows = numbers[whose] + nth * np.int64(0x5851F42D4C957F2D)
    return streams.at("cohort/rows", 0, rows).per_client(1)[:, 0]


def _examples(inputs: NDArray[Any]) -> Examples:
    """Returns unlabelled examples for model inputs `[n, width]`.

    Integer inputs are indices from 0 and -1 for none; the examples hold indices from 1 and 0 for
    none.
    """
    indexed = inputs.dtype.kind == "i"
    x = torch.from_numpy(inputs + 1 if indexed else inputs.astype(np.float32))
    return Examples(x, torch.zeros(len(x), 1), classes=2)


def of_counts(counts: ClientCounts) -> dict[str, Any]:
    """Returns the keys of [model] for the model with one parameter per count of `counts`."""
    stretches: list[list[float]] = []
    for amplitude in counts.amplitudes.tolist():
        if stretches and stretches[-1][1] == amplitude:
            stretches[-1][0] += 1
        else:
            stretches.append([1.0, amplitude])
    return {"name": "counts", "stretches": stretches}
