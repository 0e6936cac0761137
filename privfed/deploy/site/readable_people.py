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
from privfed.data.tables.readable import Readable, TableFile, TableRows
from privfed.deploy.files.data_file import SiteTable
from privfed.errors import Refused, public_text
from privfed.parts import Part
from privfed.vector import Indices

_MOST = 400
"""How often a table is read, at most, to find whose rows cannot be."""


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

    Raises `Refused` where nobody's rows can be read, or so many people's cannot that finding them
    would take too long.
    """
    if not isinstance(source, _ReadsTables):
        raise Refused("the run's data are no table; a site has a table")
    file = TableFile(Path(table.path), source.dialect)
    try:
        return Readings(source.load_from(file), 0, "")
    except Refused as error:
        reason = public_text(error)
    codes = file.read({}, {table.client: repr(table.client)}).words[table.client].codes
    people = np.unique(codes[codes >= 0])

    def reads(some: Indices) -> bool:
        try:
            source.load_from(TableRows(file.path, file.dialect, np.isin(codes, some)))
        except Refused:
            return False
        return True

    good = _good(people, reads)
    if not len(good):
        raise Refused(reason)
    among = TableRows(file.path, file.dialect, np.isin(codes, good))
    return Readings(source.load_from(among), len(people) - len(good), reason)


def _good(people: Indices, reads: Callable[[Indices], bool]) -> Indices:
    """Those of `people` whose rows can be read: halves that cannot are halved again.

    Raises `Refused` where that takes too often.
    """
    waiting, good, count = [people], [np.empty(0, dtype=people.dtype)], 0
    while waiting:
        some = waiting.pop()
        if (count := count + 1) > _MOST:
            raise Refused("the rows of too many people cannot be read")
        if reads(some):
            good.append(some)
        elif len(some) > 1:
            waiting += np.array_split(some, 2)
    return np.sort(np.concatenate(good))
