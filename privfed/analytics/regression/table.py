"""A table for a regression on levels of covariates, of which each client is counted in one cell.

A cell is a level of each covariate and whether the outcome occurred. One more cell counts the
clients whose row has no usable entries.

*Sensitivity.* At most one row of a client counts, and it adds 1 to exactly one cell. Adding or
removing a client (or zeroing its message) changes the vector of counts by at most 1 in L2, and
replacing one by at most sqrt(2). Counts of single levels are sums of cells of the noised table,
which is post-processing. If each client sent one count per covariate instead, it would change the
sum by the square root of the number of covariates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
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
from privfed.core.text import number
from privfed.core.vector import Indices
from privfed.data.tables.cells import Words
from privfed.data.tables.delimited import Dialect


@dataclass(frozen=True)
class CovariateLevels:
    """A covariate with levels: declared values of a column, or bins of its numbers.

    Attributes:
      name: the name of the column.
      values: the declared values; empty if the levels are bins.
      edges: ends of the bins [a, b), ascending; empty for declared values.
    """

    name: str
    values: tuple[str, ...]
    edges: tuple[float, ...] = ()

    @property
    def levels(self) -> tuple[str, ...]:
        """The names of the levels; the first is the reference."""
        bins = (f"[{number(low)}, {number(high)})" for low, high in pairwise(self.edges))
        return self.values or tuple(bins)

    def places(self, words: Words, dialect: Dialect) -> Indices:
        """Returns the index of each entry's level, `[N]`; -1 for entries that are no level."""
        if self.values:
            return as_values(self.name, self.values).levels(words, dialect)
        numbers = numbers_in(words, dialect)
        bins = np.searchsorted(self.edges, numbers, side="right") - 1
        return np.where(bins < len(self.edges) - 1, bins, -1)  # NaN is after the last edge


@dataclass(frozen=True)
class RegressionCells(OneCell):
    """The cells in which clients are counted: levels of the covariates x outcome occurred or not.

    Attributes:
      outcome: the column that states whether the outcome occurred.
      occurred: the entries of `outcome` that state that the outcome occurred; any other non-empty
        entry states that it did not.
      covariates: the covariates, each of which is an axis of the table of cells.
    """

    outcome: str
    occurred: tuple[str, ...]
    covariates: tuple[CovariateLevels, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of levels of each covariate."""
        return tuple(len(covariate.levels) for covariate in self.covariates)

    @property
    def length(self) -> int:
        return math.prod(self.shape) * 2 + 1

    def of_table(self, rows: ClientRows) -> Indices:
        """Returns the index of each client's cell; see
        `privfed.analytics.counted_table.ClientVector`.

        A row is unusable if its outcome is empty, or if a covariate's entry is no level.
        """
        occurred, usable = occurrences(rows.columns[self.outcome], self.occurred, rows.dialect)
        cells = np.zeros(len(occurred), dtype=np.int64)
        for covariate in self.covariates:
            levels = covariate.places(rows.columns[covariate.name], rows.dialect)
            usable = usable & (levels >= 0)
            cells = cells * len(covariate.levels) + levels
        return self.counted(cells * 2 + ~occurred, usable, rows)


class RegressionColumns(CountedTable):
    """A table with a column of outcomes, and columns of covariates with public levels."""

    outcome: str = Field(min_length=1)
    """Column of outcomes."""
    occurred: list[str | int | bool] = [1]
    """Entries of `outcome` that state that the outcome occurred; any other non-empty entry states
    that it did not."""
    covariates: list[str] = Field(min_length=1)
    """Columns of the covariates."""
    levels: dict[str, list[str | int | bool]] = {}
    """Declared values of each covariate with values, by its column; the first value is the
    reference."""
    cuts: dict[str, list[float]] = {}
    """Ends of the bins, ascending, of each covariate whose numbers are divided into bins, by its
    column; the first bin is the reference."""

    @property
    def declared(self) -> list[str]:
        """The names of the covariates whose levels, bins or bounds are declared."""
        return [*self.levels, *self.cuts]

    @property
    def stated(self) -> tuple[str, ...]:
        """The entries of `outcome` that state that the outcome occurred, as texts."""
        return as_values(self.outcome, self.occurred).values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if sorted(self.covariates) != sorted(self.declared):
            raise ValueError(
                f"covariates are {', '.join(self.covariates)}, but levels, cuts and bounds are "
                f"those of {', '.join(self.declared) or 'none'}; expected each column once"
            )
        for edges in self.cuts.values():
            refuse_unordered(edges)
        self.refuse_several_cells()
        for covariate in map(self.covariate, [*self.levels, *self.cuts]):
            if len({*covariate.levels}) < max(len(covariate.levels), 2):
                raise ValueError(
                    f"the levels of {covariate.name} are {', '.join(covariate.levels) or 'none'}; "
                    "expected at least two, each once"
                )
        return self

    def covariate(self, name: str) -> CovariateLevels:
        """Returns the covariate `name` with its levels."""
        if name in self.cuts:
            return CovariateLevels(name, (), tuple(self.cuts[name]))
        return CovariateLevels(name, as_values(name, self.levels[name]).values)

    def requested(self) -> Mapping[str, Iterable[str]]:
        return {"outcome": [self.outcome], "covariates": self.covariates}


class RegressionTable(RegressionColumns):
    """A data source of `privfed regress`: clients are counted by outcome and levels of covariates.

    The levels are public: they are never chosen from the data.
    """

    @model_validator(mode="after")
    def _few_cells(self) -> Self:
        refuse_many(self.questions.length, "covariates or levels")
        return self

    @property
    def questions(self) -> RegressionCells:
        """The cells in which clients are counted."""
        covariates = tuple(map(self.covariate, self.covariates))
        return RegressionCells(self.outcome, self.stated, covariates)

    @property
    def of_model(self) -> dict[str, Any]:
        return of_counts(self.questions)
