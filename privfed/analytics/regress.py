"""Logistic regression over a federation: planned, charged, released, and estimated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from privfed.analytics.describe import (
    CountsRelease,
    ReleasedCounts,
    declared_values,
    released_counts,
)
from privfed.analytics.description_run import counting_run, keys_of_table
from privfed.analytics.regression import LogisticRegression, OutcomeCounts, logistic_regression
from privfed.analytics.regression_table import RegressionTable
from privfed.config.config import Config
from privfed.config.reading import as_written
from privfed.core.errors import Refused
from privfed.run.outcome import Observer
from privfed.run.train import train


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


def regression_run_of(
    run_file: Path, overrides: Iterable[str], asking: RegressionRequest
) -> Config:
    """Returns the configuration of the run that releases a regression table.

    Args:
      run_file: the run file of the population.
      overrides: "key=value" settings.
      asking: columns, levels and budget.

    Raises:
      Refused: if the population, mechanism, columns or levels do not permit such a release.
    """
    raw = as_written(run_file, overrides)
    data = raw.get("data", {})
    for column in asking.cuts:
        if column not in asking.by:
            raise Refused(f"--cut names {column!r}, which is no covariate; add --by {column}")
    keys = {
        **keys_of_table(data),
        "outcome": asking.outcome,
        "occurred": [*asking.occurred],
        "covariates": [*asking.by],
        "cuts": {column: [*edges] for column, edges in asking.cuts.items()},
        "levels": {
            column: declared_values(data, column, "--by", f", or --cut {column}=a,b,…")
            for column in asking.by
            if column not in asking.cuts
        },
    }
    return counting_run(raw, "regression_table", RegressionTable, keys, asking)


def regress(
    run_file: Path,
    overrides: Iterable[str],
    asking: RegressionRequest,
    out: Path,
    observers: Sequence[Observer] = (),
) -> RegressionRelease:
    """Releases a regression table of a run file's population into the new directory `out`.

    *Releases*: the noised number of clients in each cell of levels and outcome, and nothing else.
    Coefficients, intervals and tests are post-processing. *Sensitivity*: each client adds 1 to one
    cell (`privfed.analytics.regression_table`). *Unit and adjacency*: a client with all its rows,
    under the adjacency relation of the run file's sampler. The event is one round of the run file's
    mechanism with full participation, without amplification.

    Args:
      run_file: the run file.
      overrides: "key=value" settings.
      asking: columns, levels and budget.
      out: the new run directory.
      observers: receive the events of the run.

    Raises:
      Refused: if the release has no proof or cannot be made; nothing is written then.
    """
    train(regression_run_of(run_file, overrides, asking), out, observers)
    return regression_of(out).write()


@dataclass(frozen=True)
class RegressionRelease(CountsRelease):
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
    return _estimated(released_counts(path, RegressionTable, "regress"), path)


def _estimated(released: ReleasedCounts, path: Path) -> RegressionRelease:
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
