"""What is asked of a column, from public facts alone: into which counts each of its cells goes.

A cell adds 1 to every node on its way through a tree: that it is missing, that it is a word, or
which number it is. What is known of a column beforehand (a range, the form of its dates, its
values) is declared in the run file; of any other column numbers fall into geometric cells, and
words are written into a few public buckets.

All that a client is asked in one release, as one vector of norm at most 1.

*Sensitivity.* Of a client at most `rows_per_client` rows count, m, drawn by its own coins. A cell
of a row is a vector of norm 1 (`privfed.analytics.questions`), and what a client sends of a column
is the sum of these over its rows, over m: by the triangle inequality of norm 1 at most, whatever
stands in them and however many there are. How many rows it has is one more vector of norm 1 (a
single cell). Each of these k + 1 vectors is sent times 1 / sqrt(k + 1), one beside the other: the
norm of all is at most 1, to which rows are clipped all the same. So adding or removing a client (or
zeroing what it sends) changes the sum by at most 1 in L2, and replacing one by at most 2.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from privfed.analytics.cells import Cells, geometric_cells, uniform_cells
from privfed.analytics.spelling import Spelling
from privfed.analytics.tree import Tree
from privfed.core.errors import Refused
from privfed.core.vector import Indices
from privfed.data.tables.cells import Words, as_text
from privfed.data.tables.conversion import parsed_number
from privfed.data.tables.dates import ISO, parsed_days
from privfed.data.tables.delimited import Dialect

MISSING_NODE, OTHER_NODE = 0, 1
"""The nodes of empty cells, and of words that are nothing that was asked for."""


class ColumnQuestion(Protocol):
    """What is asked of one column."""

    @property
    def name(self) -> str:
        """The column's."""
        ...

    @property
    def tree(self) -> Tree:
        """The counts that have to agree, which come first."""
        ...

    @property
    def length(self) -> int:
        """How many counts there are in all."""
        ...

    @property
    def width(self) -> int:
        """To how many counts a cell adds 1, at most."""
        ...

    @property
    def amplitudes(self) -> NDArray[np.float64]:
        """What a cell really adds to each count `[length]`: of L2 norm 1 over all, at most."""
        ...

    def places(self, words: Words, dialect: Dialect) -> Indices:
        """The counts of each cell `[N, width]`, -1 for none."""
        ...


@dataclass(frozen=True)
class ValuesAsked:
    """Of a column whose `values` are declared: how often each of them stands there."""

    name: str
    values: tuple[str, ...]

    @cached_property
    def tree(self) -> Tree:
        return Tree.flat(OTHER_NODE + 1 + len(self.values))

    @property
    def length(self) -> int:
        return len(self.tree)

    @property
    def width(self) -> int:
        return 1

    @property
    def amplitudes(self) -> NDArray[np.float64]:
        return np.ones(self.length)

    def places(self, words: Words, dialect: Dialect) -> Indices:
        place = {value: OTHER_NODE + 1 + n for n, value in enumerate(self.values)}
        missing = dialect.missing - place.keys()
        nodes = [
            MISSING_NODE if value in missing else self._node(value, place, dialect)
            for value in words.values
        ]
        return np.array([*nodes, MISSING_NODE])[words.codes][:, None]

    def _node(self, value: str, place: Mapping[str, int], dialect: Dialect) -> int:
        """The node of a word: as it stands ("01"), or as the whole number that it writes."""
        return place.get(value, place.get(_plain(value, dialect), OTHER_NODE))


@dataclass(frozen=True)
class NumbersAsked:
    """Of a column of numbers: how many lie in each public cell.

    `bounds` are its range, where that is declared; `dates` says how dates are written that are
    counted as days since 1970, where the column is one of dates. `spelling` writes other words,
    where nothing is declared of the column.
    """

    name: str
    bounds: tuple[float, float] | None = None
    dates: str = ""
    spelling: Spelling | None = None

    @cached_property
    def cells(self) -> Cells:
        """Where numbers are counted."""
        others = OTHER_NODE + 1
        return uniform_cells(*self.bounds, others) if self.bounds else geometric_cells(others)

    @property
    def tree(self) -> Tree:
        return self.cells.tree

    @property
    def length(self) -> int:
        return len(self.tree) + (self.spelling.length if self.spelling else 0)

    @property
    def _depth(self) -> int:
        return int(self.tree.depths.max()) + 1

    @property
    def width(self) -> int:
        return max(self._depth, 1 + (self.spelling.positions if self.spelling else 0))

    @property
    def amplitudes(self) -> NDArray[np.float64]:
        """A number's way through the tree is of norm 1, and so is a word with its letters."""
        ways = 1.0 / np.sqrt(self.tree.path_lengths)
        if self.spelling is None:
            return np.asarray(ways)
        ways[OTHER_NODE] = math.sqrt(1.0 / 3.0)
        letters = math.sqrt(2.0 / 3.0 / self.spelling.positions)
        return np.concatenate([ways, np.full(self.spelling.length, letters)])

    def places(self, words: Words, dialect: Dialect) -> Indices:
        numbers, missing = self._numbers(words.values, dialect)
        table = np.full((len(numbers) + 1, self.width), -1, dtype=np.int64)
        known = ~np.isnan(numbers)
        leaves = self.cells.of(numbers[known])
        table[np.flatnonzero(known), : self._depth] = self.tree.paths(leaves, self._depth)
        for row in np.flatnonzero(~known):
            table[row, 0] = MISSING_NODE if missing[row] else OTHER_NODE
            if self.spelling and not missing[row]:
                letters = self.spelling.places(words.values[row])
                table[row, 1 : 1 + len(letters)] = len(self.tree) + letters
        table[-1, 0] = MISSING_NODE
        return np.asarray(table[words.codes])

    def _numbers(
        self, values: Sequence[str], dialect: Dialect
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The number of each word, NaN where it is none, and whether it counts as empty."""
        missing = np.array([value in dialect.missing for value in values], dtype=bool)
        if self.dates:
            parsed = [parsed_days([value], self.dates or ISO) for value in values]
            return np.array([days[0] if days else math.nan for days in parsed]), missing
        numbers = np.array([_number(value, dialect) for value in values], dtype=np.float64)
        return numbers, missing


def _plain(value: str, dialect: Dialect) -> str:
    """A whole number as it is declared, however a column writes it; any other word as it is."""
    number = _number(value, dialect)
    return f"{number:.0f}" if abs(number) < 1e15 and number == round(number) else value


def _number(value: str, dialect: Dialect) -> float:
    try:
        return parsed_number(value, dialect, "")
    except Refused:
        return math.nan


def as_values(name: str, values: Collection[object]) -> ValuesAsked:
    """The question for a column with these declared `values`, as a file writes them."""
    return ValuesAsked(name, tuple(as_text(value) for value in values))


SIZES = (*range(1, 17), *(2**power + 1 for power in range(4, 13)))
"""The least numbers of rows of the cells in which clients' numbers of rows are counted."""


@dataclass(frozen=True)
class Asked:
    """The `questions` that are asked of all clients, about `rows` of each at most."""

    questions: tuple[ColumnQuestion, ...]
    rows: int

    @cached_property
    def starts(self) -> Indices:
        """Where the counts of each question begin `[k]`, and those of clients by their rows."""
        return np.cumsum([0, *(question.length for question in self.questions)])

    @property
    def length(self) -> int:
        """How many counts there are in all."""
        return int(self.starts[-1]) + len(SIZES)

    @property
    def width(self) -> int:
        """To how many counts a client adds, at most."""
        return self.rows * sum(question.width for question in self.questions) + 1

    @property
    def amplitudes(self) -> NDArray[np.float64]:
        """What a client adds to each count `[length]` for every row of that count."""
        parts = [question.amplitudes / self.rows for question in self.questions]
        together = np.concatenate([*parts, np.ones(len(SIZES))])
        return np.asarray(together / np.sqrt(len(self.questions) + 1))

    def of_clients(
        self, places: Sequence[Indices], chosen: Indices, clients: Indices, sizes: Indices
    ) -> Indices:
        """The counts of each client `[clients, width]`, -1 for none.

        `places` are those of all rows by question, `chosen` `[r]` the rows that count, `clients`
        `[r]` whose they are, rising, and `sizes` `[clients]` how many rows each client has.
        """
        first = np.searchsorted(clients, np.arange(len(sizes)))
        nth = np.arange(len(chosen)) - first[clients]
        moved = [
            np.where(each[chosen] >= 0, each[chosen] + start, -1)
            for each, start in zip(places, self.starts, strict=False)
        ]
        of_rows = np.concatenate(moved, axis=1)
        out = np.full((len(sizes), self.rows, of_rows.shape[1]), -1, dtype=np.int64)
        out[clients, nth] = of_rows
        cells = self.starts[-1] + np.searchsorted(SIZES, sizes, side="right") - 1
        return np.concatenate([out.reshape(len(sizes), -1), cells[:, None]], axis=1)


def chosen_rows(owners: Indices, order: NDArray[np.uint64], most: int) -> tuple[Indices, Indices]:
    """At most so many rows of each client, by `order` `[N]` among its own, and whose they are.

    `owners` `[N]` are numbers from 0. Which rows of a client count is decided by its own alone.
    """
    sorted_rows = np.lexsort((order, owners))
    of = owners[sorted_rows]
    nth = np.arange(len(of)) - np.searchsorted(of, of)
    return sorted_rows[nth < most], of[nth < most]
