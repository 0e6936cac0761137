"""Logistic regression over a federation: planned, charged, released, and estimated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privfed.analytics.description_run import declared_values
from privfed.analytics.regression.logistic import (
    LogisticRegression,
    OutcomeCounts,
    logistic_regression,
)
from privfed.analytics.regression.table import RegressionTable
from privfed.analytics.release import ReleasedSums, SumsRelease, released_sums
from privfed.core.errors import Refused


@dataclass(frozen=True)
class RegressionRequest:
    """The columns, the levels and the budget of a regression.

    Attributes:
      outcome: the column that states whether the outcome occurred.
      by: the columns of covariates; [data.categories] declares the values of those without `cuts`.
      cuts: ends of the bins [a, b) of covariates that are numbers, ascending.
      occurred: the entries of `outcome` that state the outcome.
      epsilon: epsilon of the release; None: the fraction that the run file states.
      delta: delta of the release; None: that of the run file.
    """

    outcome: str
    by: tuple[str, ...]
    cuts: Mapping[str, Sequence[float]] = field(default_factory=dict)
    occurred: tuple[str | int | bool, ...] = (1,)
    epsilon: float | None = None
    delta: float | None = None

    def keys(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the keys of a `regression_table`; see `privfed.analytics.release.Request`."""
        for column in self.cuts:
            if column not in self.by:
                raise Refused(f"--cut names {column!r}, which is no covariate; add --by {column}")
        return {
            "source": "regression_table",
            "outcome": self.outcome,
            "occurred": [*self.occurred],
            "covariates": [*self.by],
            "cuts": {column: [*edges] for column, edges in self.cuts.items()},
            "levels": {
                column: declared_values(data, column, "--by", f", or --cut {column}=a,b,…")
                for column in self.by
                if column not in self.cuts
            },
        }


@dataclass(frozen=True)
class RegressionRelease(SumsRelease):
    """A released regression table, its estimates, and its cost.

    Attributes:
      outcome: the column of outcomes.
      occurred: the entries of `outcome` that state the outcome.
      clients: estimated number of usable clients.
      unusable: estimated number of clients without a usable entry.
      shape: number of levels of each covariate.
      counts: noised counts with and without the outcome, by cell; the last
        covariate varies fastest.
      regression: the logistic regression.
    """

    file = "regression.json"
    outcome: str
    occurred: tuple[str, ...]
    clients: float
    unusable: float
    shape: tuple[int, ...]
    counts: list[list[float]]
    regression: LogisticRegression


def regression_of(path: Path) -> RegressionRelease:
    """Returns the estimates from the regression table that the run at `path` released.

    No data are read.

    Raises:
      Refused: if the run released nothing, or is not a run of `privfed regress`.
    """
    return _estimated(released_sums(path, (RegressionTable,), "regress"), path)


def _estimated(released: ReleasedSums, path: Path) -> RegressionRelease:
    """Returns the estimates from a released table."""
    source = released.config.source
    assert isinstance(source, RegressionTable)
    cells, table = source.questions, released.total[:-1].reshape(-1, 2)
    names, levels = zip(*((each.name, each.levels) for each in cells.covariates), strict=True)
    occurred, others = (column.reshape(cells.shape) for column in table.T)
    return RegressionRelease(
        **released.cost(path),
        outcome=cells.outcome,
        occurred=cells.occurred,
        clients=float(table.sum()),
        unusable=float(released.total[-1]),
        shape=cells.shape,
        counts=table.tolist(),
        regression=logistic_regression(
            OutcomeCounts(names, levels, occurred, others, released.noise)
        ),
    )
