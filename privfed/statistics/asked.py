"""All that a client is asked in one release, as one vector of norm at most 1.

*Sensitivity.* Of a client at most `rows_per_client` rows count, m, drawn by its own coins. A cell
of a row is a vector of norm 1 (`privfed.statistics.questions`), and what a client sends of a column
is the sum of these over its rows, over m: by the triangle inequality of norm 1 at most, whatever
stands in them and however many there are. How many rows it has is one more vector of norm 1 (a
single cell). Each of these k + 1 vectors is sent times 1 / sqrt(k + 1), one beside the other: the
norm of all is at most 1, to which rows are clipped all the same. So adding or removing a client (or
zeroing what it sends) changes the sum by at most 1 in L2, and replacing one by at most 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from privfed.statistics.questions import ColumnQuestion
from privfed.vector import Indices

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
