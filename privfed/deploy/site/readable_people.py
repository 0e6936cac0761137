"""A site's table where some people's rows cannot be read: they count for nothing, and no more.

A cell that is not as it was declared makes a table unreadable. At a site that would let one person
take all others out of the sum (PRIVACY, section 9.1, S1): so whoever cannot be read is found, and
left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
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

_ROW = re.compile(r", row \d+")
"""Where in a table a message says that something is wrong: among rows of one person, a place."""


@runtime_checkable
class _ReadsTables(Protocol):
    """A source that makes examples of any table."""

    @property
    def dialect(self) -> Dialect: ...

    def load_from(self, table: Readable) -> Examples: ...


class Readings(NamedTuple):
    """Examples of all whose rows can be read, and of how many people they cannot, by the cause."""

    examples: Examples
    causes: Mapping[str, int]

    @property
    def left_out(self) -> int:
        """The number of people whose rows cannot be read."""
        return sum(self.causes.values())

    @property
    def reason(self) -> str:
        """A line for each cause, the most frequent one first."""
        return by_cause(self.causes)


def by_cause(causes: Mapping[str, int]) -> str:
    """Lists each of the `causes` with its number of people, the most frequent one first."""
    return "\n".join(f"{n:,} people: {cause}" for cause, n in Counter(causes).most_common())


def readable_examples(source: Part, table: SiteTable) -> Readings:
    """What the `source` makes of a site's `table`.

    A row of a CSV that has too few cells, or too many, is nobody's, and left out. Raises `Refused`
    where nobody's rows can be read.
    """
    if not isinstance(source, _ReadsTables):
        raise Refused("the run's data are no table; a site has a table")
    rows = TableRows(Path(table.path), source.dialect)
    try:
        return Readings(source.load_from(rows), {})
    except Refused as error:
        reason = public_text(error)
    codes = rows.read({}, {table.client: repr(table.client)}).words[table.client].codes
    people = np.unique(codes[codes >= 0])
    place = np.searchsorted(people, codes)

    def of(some: Indices) -> np.ndarray:
        chosen = np.zeros(len(people) + 1, dtype=bool)
        chosen[some] = True
        return chosen[place] & (codes >= 0)

    def fault(some: Indices) -> str:
        try:
            source.load_from(rows.only(of(some)))
        except Refused as error:
            return _ROW.sub("", public_text(error))
        return ""

    good, causes = _good(np.arange(len(people)), fault)
    if not len(good):
        raise Refused(by_cause(causes) if _ROW.search(reason) else reason)
    return Readings(source.load_from(rows.only(of(good))), causes)


def _good(people: Indices, fault: Callable[[Indices], str]) -> tuple[Indices, Counter[str]]:
    """Those of `people` whose rows can be read, and how many cannot, by the cause.

    Halves that cannot are halved again.
    """
    waiting, good = [people], [np.empty(0, dtype=np.int64)]
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
