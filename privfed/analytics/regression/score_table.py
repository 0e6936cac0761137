"""A table for a regression with numbers: each client adds its score and information.

*Sensitivity.* At most one row of a client counts. Its vector has norm at most 1, as the round clips
it. At the coefficients that the optimizer computes, nothing is clipped
(`privfed.analytics.regression.family`), because the client's row of the design has norm at most B,
B^2 = 1 + the number of covariates: the intercept is 1; a number, clipped to its public bounds, is
scaled to [-1, 1]; and the L levels of a covariate are the corners of a regular simplex of norm 1 in
L - 1 dimensions. So adding or removing a client (or zeroing its message) changes the sum of a round
by at most 1 in L2, and replacing one by at most 2. Coefficients of a round follow from sums that
earlier rounds released, so rounds compose adaptively.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from pydantic import Field, model_validator
from scipy.linalg import helmert

from privfed.analytics.counted_table import refuse_many
from privfed.analytics.questions import ClientRows, numbers_in, occurrences
from privfed.analytics.regression.family import FAMILIES, Family
from privfed.analytics.regression.score_model import FamilyName, vector_length
from privfed.analytics.regression.table import CovariateLevels, RegressionColumns
from privfed.analytics.tree import Reals
from privfed.data.sources.declared_table import Bounds
from privfed.data.tables.cells import Words
from privfed.data.tables.delimited import Dialect

_WIDEST = 1e12
"""Largest magnitude of a number in a declared range."""
_AVERAGED = 4
"""Default number of averaged rounds of families that take several rounds."""


@dataclass(frozen=True)
class CovariateNumber:
    """A covariate that is a number: the column `name`, clipped to the public range [low, high].

    The design scales this range to [-1, 1].
    """

    name: str
    low: float
    high: float

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the covariate's levels; one "", as a number has none."""
        return ("",)

    @property
    def contrasts(self) -> Reals:
        """The factor from the coefficient to the effect of one more unit, shape `[1, 1]`."""
        return np.full((1, 1), 2.0 / (self.high - self.low))

    @property
    def origin(self) -> Reals:
        """The value of the design's column where the number is 0, shape `[1]`."""
        return np.array([-(self.high + self.low) / (self.high - self.low)])

    def largest(self, coefficients: Reals) -> float:
        """Returns the covariate's largest contribution to a linear predictor within the range.

        `coefficients` are the covariate's own, shape `[1]`.
        """
        return float(np.abs(coefficients).sum())

    def design(self, words: Words, dialect: Dialect) -> Reals:
        """Returns the covariate's column of the design, `[N, 1]`; NaN for entries that are no
        numbers.
        """
        clipped = np.clip(_finite(words, dialect), self.low, self.high)
        return np.asarray(((clipped - self.low) / (self.high - self.low) * 2.0 - 1.0)[:, None])


@dataclass(frozen=True)
class CovariateCorners:
    """A covariate with levels, which the design represents by corners of a regular simplex of norm
    1.
    """

    levels: CovariateLevels

    @property
    def name(self) -> str:
        """The name of the column."""
        return self.levels.name

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the levels; the first is the reference."""
        return self.levels.levels

    @property
    def corners(self) -> Reals:
        """The corner of each level, shape `[levels, levels - 1]`."""
        count = len(self.names)
        return np.asarray(helmert(count).T * math.sqrt(count / (count - 1)))

    @property
    def contrasts(self) -> Reals:
        """Matrix from coefficients to the effect of each level but the reference, relative to it.

        Shape `[levels - 1, levels - 1]`.
        """
        return self.corners[1:] - self.corners[:1]

    @property
    def origin(self) -> Reals:
        """The values of the design's columns at the reference level, shape `[levels - 1]`."""
        return np.asarray(self.corners[0])

    def largest(self, coefficients: Reals) -> float:
        """Returns the covariate's largest contribution to a linear predictor, over all levels.

        `coefficients` are the covariate's own, shape `[levels - 1]`.
        """
        return float((self.corners @ coefficients).max())

    def design(self, words: Words, dialect: Dialect) -> Reals:
        """Returns the covariate's columns of the design, `[N, levels - 1]`; NaN for entries that
        are no level.
        """
        corners = self.corners
        none = np.full((1, corners.shape[1]), np.nan)
        return np.concatenate([corners, none])[self.levels.places(words, dialect)]


Covariate = CovariateNumber | CovariateCorners


def _finite(words: Words, dialect: Dialect) -> Reals:
    """Returns the number of each entry, `[N]`; NaN for entries that are no finite number."""
    numbers = numbers_in(words, dialect)
    return np.where(np.isfinite(numbers), numbers, np.nan)


@dataclass(frozen=True)
class ScoreColumns:
    """The columns from which a client's score and information follow.

    Attributes:
      family: the family of outcomes.
      outcome: the column of outcomes.
      occurred: entries of `outcome` that state that the outcome occurred; used by a family with
        `named` outcomes only.
      bounds: the range to which outcomes of other families are clipped.
      covariates: the covariates.
      exposure: the column of exposures, which are clipped to `exposures`; "" for none.
      exposures: the range of exposures.
    """

    family: Family
    outcome: str
    occurred: tuple[str, ...]
    bounds: tuple[float, float]
    covariates: tuple[Covariate, ...]
    exposure: str = ""
    exposures: tuple[float, float] = (1.0, 1.0)

    @property
    def coefficients(self) -> int:
        """The number k of coefficients, including the intercept."""
        return 1 + sum(len(covariate.origin) for covariate in self.covariates)

    @property
    def length(self) -> int:
        """The number of entries of a client's vector."""
        return vector_length(self.coefficients)

    @property
    def zero_input(self) -> Reals:
        """The model input for which the client's vector is zero, shape `[1, k + 3]`."""
        return np.zeros((1, self.coefficients + 3))

    @property
    def most(self) -> float:
        """M, the largest outcome after scaling: for counts their upper bound, otherwise 1."""
        return self.bounds[1] if not (self.family.named or self.family.linear) else 1.0

    def of_table(self, rows: ClientRows) -> Reals:
        """Returns the model inputs of each client; see
        `privfed.analytics.counted_table.ClientVector`.

        A row is unusable if the entry of a column is empty, not a finite number, not a declared
        level, or an exposure that is not positive.
        """
        parts = [each.design(rows.columns[each.name], rows.dialect) for each in self.covariates]
        y, offset = self._outcomes(rows), self._offsets(rows)
        design = np.concatenate([np.ones((len(y), 1)), *parts, y[:, None], offset[:, None]], axis=1)
        usable = np.isfinite(design).all(axis=1)[:, None]
        inputs = np.concatenate([np.where(usable, design, 0.0), ~usable], axis=1)
        out = np.zeros((len(rows.sizes), inputs.shape[1]))
        out[rows.clients] = inputs[rows.chosen]
        return out

    def _outcomes(self, rows: ClientRows) -> Reals:
        """Returns the scaled outcome of each row, NaN for unusable entries, `[N]`."""
        words = rows.columns[self.outcome]
        if self.family.named:
            occurred, known = occurrences(words, self.occurred, rows.dialect)
            return np.where(known, occurred.astype(np.float64), np.nan)
        low, high = self.bounds
        clipped = np.clip(_finite(words, rows.dialect), low, high)
        return (clipped - low) / (high - low) * 2.0 - 1.0 if self.family.linear else clipped

    def _offsets(self, rows: ClientRows) -> Reals:
        """Returns the logarithm of each row's exposure divided by the largest one, `[N]`.

        NaN for unusable exposures; 0 if there is no column of exposures.
        """
        if not self.exposure:
            return np.zeros(len(rows.columns[self.outcome].codes))
        numbers = _finite(rows.columns[self.exposure], rows.dialect)
        clipped = np.clip(np.where(numbers > 0.0, numbers, np.nan), *self.exposures)
        return np.log(clipped / self.exposures[1])


class ScoreTable(RegressionColumns):
    """A data source of `privfed regress`: each client adds its score and information in a
    regression.

    Levels and bounds are public: they are never chosen from the data.
    """

    family: FamilyName
    """Family of outcomes."""
    bounds: dict[str, Bounds] = {}
    """Range [low, high] of each covariate that is a number, by its column."""
    outcome_bounds: Bounds | None = None
    """Range [low, high] of outcomes that are numbers; None for logistic regression."""
    exposure: str = ""
    """Column of exposures; empty for none."""
    exposure_bounds: Bounds | None = None
    """Range [low, high] of exposures; None without a column of exposures."""
    updates: int | None = Field(None, ge=1, le=1000)
    """Number of rounds; None: one for linear regression, else the family's `burn_in` and four more.
    """

    @property
    def declared(self) -> list[str]:
        return [*super().declared, *self.bounds]

    @model_validator(mode="after")
    def _of_family(self) -> Self:
        family = FAMILIES[self.family]
        if (self.outcome_bounds is None) != family.named:
            raise ValueError(
                f"outcome_bounds is {self.outcome_bounds}, but family is {self.family!r}; expected "
                "a range exactly if outcomes are numbers"
            )
        if self.exposure and not family.exposed:
            raise ValueError(
                f"exposure is {self.exposure!r}, but family is {self.family!r}; expected "
                'family = "poisson", or no exposure'
            )
        least = family.burn_in + 1
        if self.updates is not None and (self.updates < least or family.linear):
            expected = "one round, so leave it out" if family.linear else f"at least {least} rounds"
            raise ValueError(f"updates is {self.updates}; {self.family} takes {expected}")
        if self.outcome_bounds and self.outcome_bounds[0] and not family.linear:
            raise ValueError(
                f"the range of {self.outcome} is {self.outcome_bounds}; expected counts from 0"
            )
        return self

    @model_validator(mode="after")
    def _of_ranges(self) -> Self:
        if bool(self.exposure) != (self.exposure_bounds is not None):
            raise ValueError(
                "exposure and exposure_bounds are a column and its range; expected both, or neither"
            )
        exposures = self.exposure_bounds or [1.0, 2.0]
        outcomes = self.outcome_bounds or [0.0, 1.0]
        ranges = {**self.bounds, self.outcome: outcomes, self.exposure: exposures}
        for name, (low, high) in ranges.items():
            if not 0.0 < high - low < _WIDEST or max(abs(low), abs(high)) > _WIDEST:
                raise ValueError(
                    f"the range of {name} is [{low:g}, {high:g}]; expected low < high, within 1e12"
                )
        if exposures[0] <= 0.0:
            raise ValueError(f"the range of {self.exposure} is {exposures}; exposures are positive")
        refuse_many(self.questions.length, "covariates or levels")
        return self

    @property
    def questions(self) -> ScoreColumns:
        """The columns from which each client's vector follows."""
        covariates = (
            CovariateNumber(name, *self.bounds[name])
            if name in self.bounds
            else CovariateCorners(self.covariate(name))
            for name in self.covariates
        )
        return ScoreColumns(
            FAMILIES[self.family],
            self.outcome,
            self.stated,
            _pair(self.outcome_bounds, (0.0, 1.0)),
            tuple(covariates),
            self.exposure,
            _pair(self.exposure_bounds, (1.0, 1.0)),
        )

    @property
    def one_round(self) -> bool:
        return FAMILIES[self.family].linear

    @property
    def of_run(self) -> dict[str, Any]:
        family = FAMILIES[self.family]
        rounds = 1 if family.linear else self.updates or family.burn_in + _AVERAGED
        return {"rounds": rounds, "evaluate_every": rounds}

    @property
    def of_sums(self) -> dict[str, Any]:
        """The public constants of the sums, as keys of [model] and [server]."""
        columns = self.questions
        return {
            "family": self.family,
            "coefficients": columns.coefficients,
            "squared_norm": 1.0 + len(columns.covariates),
            "most": columns.most,
        }

    @property
    def of_model(self) -> dict[str, Any]:
        return {"name": "scores", **self.of_sums}

    @property
    def of_server(self) -> dict[str, Any]:
        burn_in = FAMILIES[self.family].burn_in
        return {"optimizer": "newton", **self.of_sums, "burn_in": burn_in}

    def requested(self) -> Mapping[str, Iterable[str]]:
        exposure = {"exposure": [self.exposure]} if self.exposure else {}
        return {**super().requested(), **exposure}


def _pair(bounds: Bounds | None, otherwise: tuple[float, float]) -> tuple[float, float]:
    return (bounds[0], bounds[1]) if bounds else otherwise
