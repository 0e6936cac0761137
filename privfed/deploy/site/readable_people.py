"""A site's table where some people's rows cannot be read: they count for nothing, and no more.

A cell that is not as it was declared makes a table unreadable. At a site that would let one person
take all others out of the sum (PRIVACY, section 9.1, S1): so whoever cannot be read is found, and
left out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from privfed.data.federation import Examples
from privfed.data.tables.delimited import Dialect
from privfed.data.tables.readable import Readable, TableRows
from privfed.deploy.files.data_file import SiteTable
from privfed.errors import Refused, public_text
from privfed.parts import Part
from privfed.vector import Indices


@runtime_checkable
class _ReadsTables(Protocol):
    """A source that makes examples of any table."""

    @property
    def dialect(self) -> Dialect: ...

    def load_from(self, table: Readable) -> Examples: ...


class Readings(NamedTuple):
    """Examples of all whose rows can be read, how many people's cannot, and the first reason."""

    examples: Examples
    left_out: int
    reason: str


def readable_examples(source: Part, table: SiteTable) -> Readings:
    """What the `source` makes of a site's `table`.

    A row of a CSV that has too few cells, or too many, is nobody's, and left out. Raises `Refused`
    where nobody's rows can be read.
    """
    if not isinstance(source, _ReadsTables):
        raise Refused("the run's data are no table; a site has a table")
    rows = TableRows(Path(table.path), source.dialect)
    try:
        return Readings(source.load_from(rows), 0, "")
    except Refused as error:
        reason = public_text(error)
    codes = rows.read({}, {table.client: repr(table.client)}).words[table.client].codes
    people = np.unique(codes[codes >= 0])
    place = np.searchsorted(people, codes)

    def of(some: Indices) -> np.ndarray:
        chosen = np.zeros(len(people) + 1, dtype=bool)
        chosen[some] = True
        return chosen[place] & (codes >= 0)

    def reads(some: Indices) -> bool:
        try:
            source.load_from(rows.only(of(some)))
        except Refused:
            return False
        return True

    good = _good(np.arange(len(people)), reads)
    if not len(good):
        raise Refused(reason)
    return Readings(source.load_from(rows.only(of(good))), len(people) - len(good), reason)


def _good(people: Indices, reads: Callable[[Indices], bool]) -> Indices:
    """Those of `people` whose rows can be read: halves that cannot are halved again."""
    waiting, good = [people], [np.empty(0, dtype=np.int64)]
    while waiting:
        some = waiting.pop()
        if reads(some):
            good.append(some)
        elif len(some) > 1:
            waiting += np.array_split(some, 2)
    return np.sort(np.concatenate(good))
