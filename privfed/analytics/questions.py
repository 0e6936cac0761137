"""The questions about columns, and the vector of counts that each client sends in answer.

**Questions.** A question is the set of counts by which one column is described. It follows from
public facts alone, never from clients' data. The counts of a column form a tree. Each entry of the
column adds 1 to every node on one path from the top: to the node for empty entries, to the node for
words, or to the nodes whose ranges contain its number. Prior knowledge of a column (a range, the
format of its dates, its values) is declared in the run file. In any other column numbers fall into
geometric cells (`privfed.analytics.cells`), and words are encoded into a few public buckets
(`privfed.analytics.spelling`).

**Vector.** All questions of one release are answered by one vector of norm at most 1 per client.

*Sensitivity.* At most m = `rows_per_client` rows of a client count, sampled by the client's own
randomness. A row's entry in a column is a vector of norm at most 1, since every count is scaled by
a public amplitude. A client's vector for the column is the sum of these over its counted rows,
divided by m. By the triangle inequality its norm is at most 1, for any content and any number of
rows. The client's number of rows is one more vector of norm 1 (a single count). These k + 1 vectors
are each multiplied by 1 / sqrt(k + 1) and concatenated. The norm of the result is at most 1, and
the round clips vectors to it in any case. So adding or removing a client (or zeroing its message)
changes the sum by at most 1 in L2, and replacing one by at most 2.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

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
"""Tree nodes of every question: that of empty entries, and that of other entries (undeclared
values, or words in a column whose numbers are counted)."""


@dataclass(frozen=True)
class ValuesQuestion:
    """The question how often each of the declared `values` of the column `name` occurs.

    Its counts are those of empty entries, of entries that are no declared value, and of each value.
    """

    name: str
    values: tuple[str, ...]

    @cached_property
    def tree(self) -> Tree:
        """The tree of the question's counts (`privfed.analytics.tree`), all nodes at the top."""
        return Tree.flat(OTHER_NODE + 1 + len(self.values))

    @property
    def length(self) -> int:
        """The number of counts of the question."""
        return len(self.tree)

    @property
    def width(self) -> int:
        """The largest number of counts to which one entry of the column adds."""
        return 1

    @property
    def amplitudes(self) -> NDArray[np.float64]:
        """The amount that an entry of the column adds to a count, for each count, shape `[length]`.

        The amounts that one entry adds have L2 norm at most 1.
        """
        return np.ones(self.length)

    def places(self, words: Words, dialect: Dialect) -> Indices:
        """Returns the indices of the counts to which each entry adds, shape `[N, width]`; -1 for
        none.

        Args:
          words: the N entries of the column.
          dialect: the format of the table.
        """
        place = {value: OTHER_NODE + 1 + n for n, value in enumerate(self.values)}
        missing = dialect.missing - place.keys()
        nodes = [
            MISSING_NODE if value in missing else self._node(value, place, dialect)
            for value in words.values
        ]
        return np.array([*nodes, MISSING_NODE])[words.codes][:, None]

    def levels(self, words: Words, dialect: Dialect) -> Indices:
        """Returns each entry's index in `values`, `[N]`; -1 for empty and undeclared entries."""
        return np.asarray(np.maximum(self.places(words, dialect)[:, 0] - OTHER_NODE - 1, -1))

    def _node(self, value: str, place: Mapping[str, int], dialect: Dialect) -> int:
        """Returns the tree node of a word that is not empty.

        The node is that of the declared value that equals the word ("01"), else of the one that
        equals the word's integer ("1"), else `OTHER_NODE`. `place` maps declared values to nodes.
        """
        return place.get(value, place.get(_plain(value, dialect), OTHER_NODE))


@dataclass(frozen=True)
class NumbersQuestion:
    """The question how often the numbers of a column fall into each of its public cells.

    Attributes:
      name: the column's name.
      bounds: the declared range; None: cells are geometric.
      dates: format of the column's dates ("iso", or one of `datetime.strptime`), which are counted
        as days since 1970-01-01; empty if the column holds no dates.
      spelling: encoding of words that are no numbers; None for a declared column, whose words are
        only counted together.
    """

    name: str
    bounds: tuple[float, float] | None = None
    dates: str = ""
    spelling: Spelling | None = None

    @cached_property
    def cells(self) -> Cells:
        """The cells in which numbers are counted."""
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
        """The amount that an entry of the column adds to a count, for each count, shape `[length]`.

        The amounts that one number, or one word, adds have L2 norm at most 1.
        """
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
        """Returns each word's number, and a mask of the words in `dialect.missing`.

        Dates are days since 1970-01-01. A word that is no number, or no date, is NaN.
        """
        missing = np.array([value in dialect.missing for value in values], dtype=bool)
        if self.dates:
            parsed = [parsed_days([value], self.dates or ISO) for value in values]
            return np.array([days[0] if days else math.nan for days in parsed]), missing
        numbers = np.array([number_in_cell(value, dialect) for value in values], dtype=np.float64)
        return numbers, missing


ColumnQuestion = ValuesQuestion | NumbersQuestion
"""A question about one column."""


def _plain(value: str, dialect: Dialect) -> str:
    """Returns a word that denotes an integer of magnitude below 10^15 in plain digits ("01" → "1").

    Any other word is returned unchanged.
    """
    number = number_in_cell(value, dialect)
    return f"{number:.0f}" if abs(number) < 1e15 and number == round(number) else value


def number_in_cell(value: str, dialect: Dialect) -> float:
    """Returns the number that a table entry denotes; NaN if it is empty or no number."""
    try:
        return parsed_number(value, dialect, "")
    except Refused:
        return math.nan


def numbers_in(words: Words, dialect: Dialect) -> NDArray[np.float64]:
    """Returns the number of each entry, shape `[N]`; NaN for empty entries and those that are no
    numbers.
    """
    return np.array([*(number_in_cell(each, dialect) for each in words.values), math.nan])[
        words.codes
    ]


def occurrences(
    words: Words, occurred: Collection[object], dialect: Dialect
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Returns two masks `[N]` of the entries `words`: those equal to a value in `occurred`, as
    words or as integers ("01" to "1"), and those not empty.
    """
    nodes = as_values("", occurred).places(words, dialect)[:, 0]
    return nodes > OTHER_NODE, nodes > MISSING_NODE


def as_values(name: str, values: Collection[object]) -> ValuesQuestion:
    """Returns the question for a column with these declared `values`, each as the text of a table
    entry.
    """
    return ValuesQuestion(name, tuple(as_text(value) for value in values))


@dataclass(frozen=True, eq=False)
class ClientRows:
    """The counted rows of a table, and the clients to which they belong.

    If the table has a column of sites, "client" here means a client at one site.

    Attributes:
      columns: all N entries of each requested column, by the column's name.
      dialect: the format of the table.
      chosen: indices of the counted rows in the table, shape `[r]`.
      clients: index of the client of each counted row, ascending, shape `[r]`.
      sizes: number of rows of each client in the table, counted or not, shape `[clients]`.
    """

    columns: Mapping[str, Words]
    dialect: Dialect
    chosen: Indices
    clients: Indices
    sizes: Indices


SIZES = (*range(1, 17), *(2**power + 1 for power in range(4, 13)))
"""Lower ends of the cells that count clients by their number of rows: 1 to 16, then 17, 33, 65, …
"""


@dataclass(frozen=True)
class Questions:
    """All questions of a release, and the layout of a client's vector of counts.

    Attributes:
      questions: one question for each described column.
      rows: largest number of a client's rows that are counted.
    """

    questions: tuple[ColumnQuestion, ...]
    rows: int

    @cached_property
    def starts(self) -> Indices:
        """Index, in the vector, of the first count of each of the k questions, `[k + 1]`.

        The last entry is the start of the histogram of clients by their number of rows.
        """
        return np.cumsum([0, *(question.length for question in self.questions)])

    @property
    def length(self) -> int:
        """The number of counts in a client's vector."""
        return int(self.starts[-1]) + len(SIZES)

    @property
    def width(self) -> int:
        """The largest number of counts to which a client adds."""
        return self.rows * sum(question.width for question in self.questions) + 1

    @property
    def zero_input(self) -> Indices:
        return np.full((1, self.width), -1)

    @property
    def amplitudes(self) -> NDArray[np.float64]:
        """The amount added to a count, for each count, shape `[length]`.

        A counted row adds it to the counts of a question; the client adds it once to the histogram.
        """
        parts = [question.amplitudes / self.rows for question in self.questions]
        together = np.concatenate([*parts, np.ones(len(SIZES))])
        return np.asarray(together / np.sqrt(len(self.questions) + 1))

    def of_table(self, rows: ClientRows) -> Indices:
        """Returns the indices of the counts to which each client adds, `[clients, width]`; -1 for
        none.

        See `privfed.analytics.counted_table.ClientCounts`.
        """
        chosen, clients, sizes = rows.chosen, rows.clients, rows.sizes
        first = np.searchsorted(clients, np.arange(len(sizes)))
        nth = np.arange(len(chosen)) - first[clients]
        places = [each.places(rows.columns[each.name], rows.dialect) for each in self.questions]
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
    """Returns at most `most` rows of each client, and their owners.

    The choice among a client's rows depends only on that client's own rows.

    Args:
      owners: the client of each row, numbered from 0, shape `[N]`.
      order: a number for each row, shape `[N]`; the client's rows with the smallest numbers are
        chosen.
      most: largest number of rows per client.

    Returns:
      Indices of the chosen rows and their clients, ascending by client, both of shape `[r]`.
    """
    sorted_rows = np.lexsort((order, owners))
    of = owners[sorted_rows]
    nth = np.arange(len(of)) - np.searchsorted(of, of)
    return sorted_rows[nth < most], of[nth < most]
