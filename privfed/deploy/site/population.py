"""A site's clients, read from its own table with the columns that the run declares.

In a simulation, one cell that contradicts its column's declaration makes the table unreadable. At a
site this would let one client exclude all others from the sum (rules of proof, section 9.1, S1). So
a site leaves out the clients with unreadable rows, and reads all others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from privfed.config.config import Config
from privfed.core.errors import Refused, public_text
from privfed.core.parts import Part
from privfed.core.vector import Indices
from privfed.data.federation import Examples, Federation
from privfed.data.sites import Entries, earlier_sums, entry_identities
from privfed.data.sources.declared_examples import declared_columns
from privfed.data.sources.declared_table import DeclaredTable
from privfed.data.tables.delimited import Dialect
from privfed.data.tables.readable import Readable, TableRows
from privfed.deploy.files.data_file import SiteTable
from privfed.deploy.messages.declaration import ExampleForm
from privfed.deploy.site.release_check import StatesRelease
from privfed.run.population import sites_of

_ROW = re.compile(r", row \d+")
"""Pattern of a row number in a message; causes are grouped without it."""


@runtime_checkable
class ReadsTables(Protocol):
    """A source that can read examples from any table."""

    @property
    def dialect(self) -> Dialect: ...

    def load_from(self, table: Readable) -> Examples: ...


def most_examples(config: Config, table: SiteTable) -> int:
    """Returns the largest number of examples that are used of one client at a site.

    This is `table.rows`, or 1 for a release of statistics, which makes one example of all rows of a
    client.
    """
    return 1 if isinstance(config.source, StatesRelease) else table.rows


class Readings(NamedTuple):
    """Examples of all clients whose rows can be read, and the number of the others by cause."""

    examples: Examples
    causes: Mapping[str, int]

    @property
    def left_out(self) -> int:
        """The number of clients whose rows cannot be read."""
        return sum(self.causes.values())

    @property
    def reason(self) -> str:
        """A line for each cause, the most frequent cause first."""
        return by_cause(self.causes)


def by_cause(causes: Mapping[str, int]) -> str:
    """Returns one line for each cause, with its rounded number of clients, most frequent first."""
    return "\n".join(f"{about(n)} clients: {why}" for why, n in Counter(causes).most_common())


def about(clients: int) -> str:
    """Returns a number of clients as text, rounded to tens, or "fewer than 10"."""
    return f"about {round(clients, -1):,}" if clients >= 10 else "fewer than 10"


def readable_examples(source: Part, table: SiteTable) -> Readings:
    """Returns the examples of all clients in a site's `table` whose rows the `source` can read.

    CSV rows with too few or too many cells belong to no client: they are left out, and not counted.

    Raises:
      Refused: if `source` does not read tables, or no client's rows can be read.
    """
    if not isinstance(source, ReadsTables):
        raise Refused(
            'data.source is not "table", but a site has a table; the run has to set data.source = '
            '"table"'
        )
    rows = TableRows(Path(table.path), source.dialect)
    try:
        return Readings(source.load_from(rows), {})
    except Refused as error:
        reason = public_text(error)
    codes = rows.read({}, {table.client: repr(table.client)}).words[table.client].codes
    clients = np.unique(codes[codes >= 0])
    place = np.searchsorted(clients, codes)

    def of(some: Indices) -> np.ndarray:
        chosen = np.zeros(len(clients) + 1, dtype=bool)
        chosen[some] = True
        return chosen[place] & (codes >= 0)

    def fault(some: Indices) -> str:
        try:
            source.load_from(rows.only(of(some)))
        except Refused as error:
            return _ROW.sub("", public_text(error)).removeprefix(f"data: {table.path}: ")
        return ""

    good, causes = _good(np.arange(len(clients)), fault)
    if not len(good):
        if not _ROW.search(reason):
            raise Refused(reason)
        raise Refused(
            f"data: {table.path}: no client's rows can be read, so no client would count:\n"
            f"{by_cause(causes)}"
        )
    return Readings(source.load_from(rows.only(of(good))), causes)


def _good(clients: Indices, fault: Callable[[Indices], str]) -> tuple[Indices, Counter[str]]:
    """Returns those `clients` with readable rows, sorted, and the number of the others by cause.

    `fault` returns the reason why the rows of a group of clients cannot be read; "" if they can be.
    A group that cannot be read is bisected.
    """
    waiting, good = [clients], [np.empty(0, dtype=np.int64)]
    causes: Counter[str] = Counter()
    while waiting:
        some = waiting.pop()
        if not (why := fault(some)):
            good.append(some)
        elif len(some) > 1:
            waiting += np.array_split(some, 2)
        else:
            causes[why] += 1
    return np.sort(np.concatenate(good)), causes


def synthetic_clients(config: Config, form: ExampleForm, count: int = 0) -> Federation:
    """Returns `count` synthetic clients of one zero example each, from which a model is built.

    They have the columns and labels that the run declares, and no test set. They must not be used
    to check data.
    """
    synthetic = form.zeros(count)
    if isinstance(config.source, DeclaredTable):
        known = declared_columns(config.source)
        synthetic = replace(synthetic, meaning=known.meaning, preprocessing=known.preprocessing)
    return Federation(
        synthetic,
        np.arange(count + 1, dtype=np.int64),
        synthetic.take(np.empty(0, dtype=np.int64)),
        stands_for=config.data.clients,
        sites=np.zeros(count, dtype=np.int64),
    )


def site_population(
    examples: Examples, config: Config, table: SiteTable, form: ExampleForm, site: str
) -> Federation:
    """Returns a site's clients, each with at most its first `table.rows` rows.

    In a release of statistics, each client has one example of all of its rows.

    Args:
      examples: examples read from the site's table, with owners.
      config: the run.
      table: the site's declaration of its table.
      form: declared shapes and types of examples.
      site: name of the site.

    Raises:
      Refused: if the run names no client column, or the examples have another form.
    """
    if examples.owners is None:
        raise Refused(
            "data.client is empty, but clients must be known; set it to the column that identifies "
            "the client of a row"
        )
    if ExampleForm.of(examples) != form:
        raise Refused(
            "the table's examples differ in shape or type from the run's declaration; correct the "
            "columns of the table, or [data] in the run file",
            private=f"{ExampleForm.of(examples)}; expected {form}",
        )
    clients = len(examples.clients)
    places = earlier_sums(np.ones_like(examples.owners), examples.owners)
    first = np.flatnonzero(places < most_examples(config, table))
    bounded = examples.take(first)
    entries = Entries(examples.owners, np.zeros(clients, dtype=np.int64), np.arange(clients))
    owners = examples.owners[first]
    return replace(
        Federation.of(bounded, owners, clients, form.zeros(0)),
        identities=entry_identities(entries, examples.clients, (site,), sites_of(config)),
        stands_for=config.data.clients,
        sites=np.zeros(clients, dtype=np.int64),
    )
