"""A table of times to an event, of which each client is counted in one cell.

A cell is a bin of time, whether the event occurred or the time was censored, and a group. One more
cell counts the clients whose row has no usable entries.

*Sensitivity.* At most one row of a client counts, and it adds 1 to exactly one cell. Adding or
removing a client (or zeroing its message) changes the vector of counts by at most 1 in L2, and
replacing one by at most sqrt(2). Numbers at risk are sums of cells of the noised table, which is
post-processing. If each client sent the bins in which it was at risk instead, one client would
change the sum by the square root of the number of bins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from pydantic import Field, model_validator

from privfed.analytics.counted_table import (
    CountedTable,
    OneCell,
    of_counts,
    refuse_many,
    refuse_unordered,
)
from privfed.analytics.questions import ClientRows, as_values, numbers_in, occurrences
from privfed.core.vector import Indices


@dataclass(frozen=True)
class SurvivalCells(OneCell):
    """The cells in which clients are counted: group x bin of time x event or censored.

    Attributes:
      time: the column of times.
      event: the column that states whether the event occurred.
      occurred: the entries of `event` that state an event; any other non-empty entry states that
        the time was censored.
      edges: ends of the bins, ascending, `[b + 1]`; bin j is [edges[j], edges[j + 1]).
      group: the column of groups; "" for one group.
      groups: the declared values of the column `group`; `("",)` for one group.
    """

    time: str
    event: str
    occurred: tuple[str, ...]
    edges: tuple[float, ...]
    group: str = ""
    groups: tuple[str, ...] = ("",)

    @property
    def bins(self) -> int:
        """The number of bins of time."""
        return len(self.edges) - 1

    @property
    def length(self) -> int:
        return len(self.groups) * self.bins * 2 + 1

    def of_table(self, rows: ClientRows) -> Indices:
        """Returns the index of each client's cell; see
        `privfed.analytics.counted_table.ClientVector`.

        A time at or after the last edge is counted as censored in the last bin. A row is unusable
        if its time is no number or below the first edge, if its event is empty, or if its group is
        not declared.
        """
        times = numbers_in(rows.columns[self.time], rows.dialect)
        events, known = occurrences(rows.columns[self.event], self.occurred, rows.dialect)
        groups = np.zeros(len(times), dtype=np.int64)
        if self.group:
            declared = as_values(self.group, self.groups)
            groups = declared.levels(rows.columns[self.group], rows.dialect)
        late = times >= self.edges[-1]
        bins = np.clip(np.searchsorted(self.edges, times, side="right") - 1, 0, self.bins - 1)
        cells = (groups * self.bins + bins) * 2 + np.where(events & ~late, 0, 1)
        usable = known & (groups >= 0) & (times >= self.edges[0])  # False for NaN
        return self.counted(cells, usable, rows)


class SurvivalTable(CountedTable):
    """The data source of `privfed survive`: clients are counted by time, event and group.

    The bins and the groups are public: they are never chosen from the data.
    """

    time: str = Field(min_length=1)
    """Column of times until the event, or until the time was censored."""
    event: str = Field(min_length=1)
    """Column that states whether the event occurred (if not, the time was censored)."""
    occurred: list[str | int | bool] = [1]
    """Entries of `event` that state an event; any other entry that is not empty states
    censoring."""
    edges: list[float] = Field(min_length=2)
    """Ends of the bins of time, ascending."""
    group: str = ""
    """Column of groups; empty for one group."""
    groups: list[str | int | bool] = []
    """Declared values of the column `group`, each of which is a group."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.refuse_several_cells()
        refuse_unordered(self.edges)
        if bool(self.group) != bool(self.groups):
            raise ValueError("group and groups are the column and its values; expected both")
        refuse_many(self.questions.length, "bins or groups")
        return self

    @property
    def questions(self) -> SurvivalCells:
        """The cells in which clients are counted."""
        groups = as_values(self.group, self.groups).values if self.group else ("",)
        occurred = as_values(self.event, self.occurred).values
        return SurvivalCells(self.time, self.event, occurred, tuple(self.edges), self.group, groups)

    @property
    def of_model(self) -> dict[str, Any]:
        return of_counts(self.questions)

    def requested(self) -> Mapping[str, Iterable[str]]:
        columns = {"time": [self.time], "event": [self.event]}
        return {**columns, "categories": [self.group]} if self.group else columns
