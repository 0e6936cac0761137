"""Requests a regression over a federation, and estimates it from a release."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from privfed.analytics.description_run import by_column, declared_ranges, declared_values
from privfed.analytics.regression.estimates import (
    CovariateEstimate,
    Regression,
    covariate_estimate,
)
from privfed.analytics.regression.family import FAMILIES, Family
from privfed.analytics.regression.logistic import OutcomeCounts, logistic_regression
from privfed.analytics.regression.score_model import Newton, information
from privfed.analytics.regression.score_table import (
    Covariate,
    ScoreColumns,
    ScoreTable,
)
from privfed.analytics.regression.scores import Fitted, NoEstimate, ScoreSums, fitted
from privfed.analytics.regression.table import RegressionTable
from privfed.analytics.release import ReleasedSums, SumsRelease, released_sums
from privfed.analytics.tree import Reals
from privfed.core.errors import Refused


@dataclass(frozen=True)
class RegressionRequest:
    """A request for a regression: the columns, the bins of numbers, and the budget.

    Attributes:
      outcome: the column of outcomes.
      by: the columns of covariates. Each is declared by its levels in [data.categories], its bins
        in `cuts`, or its range of numbers in [data.features].
      cuts: ends of the bins [a, b), ascending, by the name of a covariate of binned numbers.
      occurred: for logistic regression, the entries of `outcome` that mean it occurred; empty: the
        entry 1.
      family: "logistic", "linear" or "poisson".
      exposure: the column of exposures of counts, whose range [data.features] declares; "" for
        none.
      rounds: number of rounds, above the family's `burn_in`; None: `burn_in` and four more. Has to
        be None for a regression of one round (linear, or logistic on levels alone).
      epsilon: epsilon of the release; None: its fraction of the run's budget is
        `budget.statistics`.
      delta: delta of the release; None: the delta of the run file.
    """

    outcome: str
    by: tuple[str, ...]
    cuts: Mapping[str, Sequence[float]] = field(default_factory=dict)
    occurred: tuple[str | int | bool, ...] = ()
    family: str = "logistic"
    exposure: str = ""
    rounds: int | None = None
    epsilon: float | None = None
    delta: float | None = None

    def keys(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the source, `regression_table` or `score_table`, and its keys of [data].

        A logistic regression on levels alone takes the `regression_table`, whose counts are
        released in one round. See `privfed.analytics.release.Request.keys`.

        Raises:
          Refused: if the columns or options are not usable, or a column is not declared.
        """
        self._refuse_columns()
        if self.family not in FAMILIES:
            raise Refused(f"--family is {self.family!r}; expected one of {', '.join(FAMILIES)}")
        ranges, family = declared_ranges(data), FAMILIES[self.family]
        levels = by_column(data, "categories")
        numbers = [
            column for column in self.by if column not in {*self.cuts, *levels} and column in ranges
        ]
        keys = {
            "outcome": self.outcome,
            "occurred": [*(self.occurred or (1,))],
            "covariates": [*self.by],
            "cuts": {column: [*edges] for column, edges in self.cuts.items()},
            "levels": {
                column: declared_values(data, column, "--by", _OTHERWISE.format(column))
                for column in self.by
                if column not in {*self.cuts, *numbers}
            },
        }
        self._refuse_options(family, ranges, numbers)
        if family.named and not numbers:
            return {"source": "regression_table", **keys}
        outcome = None if family.named else _range(ranges, self.outcome, "--outcome")
        exposed = _range(ranges, self.exposure, "--exposure") if self.exposure else None
        return {
            "source": "score_table",
            **keys,
            "family": self.family,
            "bounds": {column: ranges[column] for column in numbers},
            "outcome_bounds": outcome,
            "exposure": self.exposure,
            "exposure_bounds": exposed,
            "updates": self.rounds,
        }

    def _refuse_columns(self) -> None:
        """Raises `Refused` unless columns are named, covariates once, and `cuts` by covariate."""
        if not self.outcome or not self.by:
            raise Refused("outcome and by are both needed; name a column, and a list of covariates")
        if repeated := {column for column in self.by if self.by.count(column) > 1}:
            raise Refused(f"--by names {min(repeated)!r} twice; name each covariate once")
        for column in self.cuts:
            if column not in self.by:
                raise Refused(f"--cut names {column!r}, which is no covariate; add --by {column}")

    def _refuse_options(
        self, family: Family, ranges: Mapping[str, Any], numbers: Sequence[str]
    ) -> None:
        """Raises `Refused` for `occurred` with a family of numbers, `exposure` except with counts,
        `rounds` of a regression of one round or not above `burn_in`, and a logistic outcome that
        has a declared range but no `occurred`.
        """
        if self.occurred and not family.named:
            raise Refused(
                f"--occurred is {self.occurred[0]!r}, but --family is {self.family!r}, whose "
                "outcomes are numbers; leave it out"
            )
        if family.named and not self.occurred and self.outcome in ranges:
            raise Refused(
                f"--outcome is {self.outcome!r}, whose range [data.features] declares, but "
                f"--family is {self.family!r}; pass --family linear for numbers or poisson for "
                "counts, or --occurred for the entries that state the outcome"
            )
        one_round = family.linear or (family.named and not numbers)
        if self.rounds is not None and (one_round or self.rounds <= family.burn_in):
            wanted = "takes one round; leave it out"
            if not one_round:
                wanted = f"takes at least {family.burn_in + 1} rounds"
            raise Refused(f"--rounds is {self.rounds}, but this regression {wanted}")
        if self.exposure and not family.exposed:
            raise Refused(
                f"--exposure is {self.exposure!r}, but --family is {self.family!r}, which has no "
                "exposures; leave it out, or pass --family poisson"
            )


_OTHERWISE = ", or its range {0} = [low, high] in [data.features], or --cut {0}=a,b,…"


def _range(ranges: Mapping[str, Any], column: str, option: str) -> Any:
    """Returns the range of `column` in [data.features]. Raises `Refused` if it has none."""
    if column not in ranges:
        raise Refused(
            f"{option} is {column!r}, but [data.features] does not declare its range, which has to "
            f"be public; declare {column} = [low, high]",
            key="data.features",
        )
    return ranges[column]


@dataclass(frozen=True)
class RegressionRelease(SumsRelease):
    """Released sums of a regression, its estimates, and their cost.

    Attributes:
      outcome: the column of outcomes.
      occurred: the entries of `outcome` that mean it occurred; empty if outcomes are numbers.
      exposure: the column of exposures; "" for none.
      clients: noised number of clients with usable entries.
      unusable: noised number of clients whose row has no usable entries.
      regression: the estimates.
      shape: number of levels of each covariate; empty if no cells were counted.
      counts: noised number of clients with the outcome and without it, for each combination of
        levels; the last covariate varies fastest. Empty if no cells were counted.
    """

    file = "regression.json"
    outcome: str
    occurred: tuple[str, ...]
    exposure: str
    clients: float
    unusable: float
    regression: Regression
    shape: tuple[int, ...] = ()
    counts: tuple[list[float], ...] = ()


def regression_of(path: Path) -> RegressionRelease:
    """Returns the estimates from the sums that the run at `path` released.

    No client's data are read.

    Raises:
      Refused: if the run released nothing, or is not a run of `privfed regress`.
    """
    released = released_sums(path, (RegressionTable, ScoreTable), "regress")
    source = released.config.source
    if isinstance(source, RegressionTable):
        return _from_counts(released, source, path)
    assert isinstance(source, ScoreTable)
    return _from_scores(released, source, path)


def _from_counts(released: ReleasedSums, source: RegressionTable, path: Path) -> RegressionRelease:
    """Returns the logistic regression from released counts of cells."""
    cells, table = source.questions, released.total[:-1].reshape(-1, 2)
    names, levels = zip(*((each.name, each.levels) for each in cells.covariates), strict=True)
    occurred, others = (column.reshape(cells.shape) for column in table.T)
    return RegressionRelease(
        **released.cost(path),
        outcome=cells.outcome,
        occurred=cells.occurred,
        exposure="",
        clients=float(table.sum()),
        unusable=float(released.total[-1]),
        regression=logistic_regression(
            OutcomeCounts(names, levels, occurred, others, released.noise)
        ),
        shape=cells.shape,
        counts=tuple(table.tolist()),
    )


def _from_scores(released: ReleasedSums, source: ScoreTable, path: Path) -> RegressionRelease:
    newton, columns = released.config.optimizer, source.questions
    assert isinstance(newton, Newton)
    state = {name.removeprefix("server/"): each for name, each in released.tensors.items()}
    sums, unusable = score_sums(state, newton, released.scale, released.noise)
    return RegressionRelease(
        **released.cost(path),
        outcome=columns.outcome,
        occurred=columns.occurred if columns.family.named else (),
        exposure=columns.exposure,
        clients=sums.clients,
        unusable=unusable,
        regression=estimated_regression(source.family, columns, sums),
    )


def score_sums(
    state: Mapping[str, Reals], newton: Newton, scale: float, noise: float
) -> tuple[ScoreSums, float]:
    """Returns averages over rounds of the released sums, and the noised number of unusable clients.

    Args:
      state: the state of the optimizer `newton` after the last round.
      newton: the optimizer.
      scale: factor from averages over clients to sums over clients.
      noise: standard deviation of the noise on each entry of these sums, of one round.

    Raises:
      Refused: if no round after the first `burn_in` ones was released.
    """
    rounds, by = int(state["rounds"][0]), newton.amplitudes
    if not rounds:
        raise Refused(
            "no round after the first ones was released, so there is no estimate; start a new run "
            "with more --rounds"
        )
    factor, k = scale / rounds, newton.coefficients
    others = state["others"] * factor
    square, usable, unusable = (float(each) for each in others[-3:])
    matrix = information(torch.from_numpy(others), k).numpy() / by.information
    sums = ScoreSums(
        coefficients=state["coefficients"] / rounds,
        score=state["score"] * factor / by.score,
        information=matrix,
        squares=square / by.square if by.square else None,
        clients=usable / by.usable,
        score_std=noise / by.score,
        information_std=noise / by.information * math.sqrt(0.5),
        rounds=rounds,
        family=FAMILIES[newton.family],
        first=(float(state["first"][0]) * scale, float(state["first"][1]) * scale),
        change=state["change"] if newton.burn_in else None,
    )
    return sums, unusable


def estimated_regression(family: str, columns: ScoreColumns, sums: ScoreSums) -> Regression:
    """Returns the regression from `sums`; if they have no estimate, its `reason` says why."""
    try:
        return stated_regression(family, columns, fitted(sums))
    except NoEstimate as reason:
        return replace(stated_regression(family, columns, None), reason=str(reason))


def stated_regression(family: str, columns: ScoreColumns, estimates: Fitted | None) -> Regression:
    """Returns the regression in the units of the table's columns.

    Args:
      family: the name of the family.
      columns: the columns, with their scales.
      estimates: estimates for the scaled columns of the design; None if there are none.
    """
    kind, low = FAMILIES[family], columns.bounds[0]
    unit = (columns.bounds[1] - low) / 2.0 if kind.linear else 1.0
    ends = np.cumsum([1, *(len(each.origin) for each in columns.covariates)])
    parts = [slice(*pair) for pair in pairwise(ends)]
    covariates = tuple(
        _covariate(covariate, estimates, part, unit, bool(kind.ratio))
        for covariate, part in zip(columns.covariates, parts, strict=True)
    )
    if estimates is None:
        return Regression(family, kind.ratio, None, None, covariates)
    origin = np.concatenate([[1.0], *(each.origin for each in columns.covariates)])
    shift = kind.constant(columns.most) - math.log(columns.exposures[1])
    return Regression(
        family,
        kind.ratio,
        unit * float(origin @ estimates.coefficients) + (low + unit if kind.linear else shift),
        unit * math.sqrt(float(origin @ estimates.covariance @ origin)),
        covariates,
        None if kind.named else unit**2 * estimates.dispersion,
        warning=_warning(kind, columns, estimates.coefficients, parts),
    )


def _covariate(
    covariate: Covariate, estimates: Fitted | None, part: slice, unit: float, ratio: bool
) -> CovariateEstimate:
    """Returns a covariate's estimates from the slice `part` of coefficients, times `unit`."""
    effects, names = None, covariate.names
    if estimates is not None:
        contrasts = covariate.contrasts * unit
        covariance = contrasts @ estimates.covariance[part, part] @ contrasts.T
        effects = contrasts @ estimates.coefficients[part], covariance
    places = range(len(names) - len(covariate.contrasts), len(names))
    return covariate_estimate(covariate.name, names, effects, places, ratio=ratio)


def _warning(kind: Family, columns: ScoreColumns, b: Reals, parts: Sequence[slice]) -> str:
    """Returns a warning of bias, or "" if no linear predictor within the declared ranges exceeds
    the family's `limit`.
    """
    pairs = zip(columns.covariates, parts, strict=True)
    largest = float(b[0]) + sum(each.largest(b[part]) for each, part in pairs)
    if largest <= kind.limit:
        return ""
    return (
        f"expected counts reach {columns.most / 8.0 * math.exp(largest):.3g} at the ends of all "
        f"ranges, but are limited to {columns.most / 2.0:g}: if there are such clients, estimates "
        f"are biased; declare a wider range of {columns.outcome}"
    )
