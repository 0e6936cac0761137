"""Estimates of a regression, with intervals and tests that contain the noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from scipy.stats import chi2, norm

from accounting.documents import Encoded
from privfed.analytics.tree import Reals

Z = float(norm.isf(0.025))
_FINITE = 300.0
"""Largest logarithm of a ratio that is stated."""


@dataclass(frozen=True)
class CrudeEstimate(Encoded):
    """Counts of a level, whatever the other covariates.

    Attributes:
      clients: number of clients.
      occurred: number of clients with the outcome.
      proportion: proportion with the outcome; None if no client is visible.
      low: lower end of its 95 % interval.
      high: upper end of its 95 % interval.
    """

    clients: float
    occurred: float
    proportion: float | None
    low: float
    high: float


@dataclass(frozen=True)
class LevelEstimate(Encoded):
    """The effect of a level relative to the reference, or of one more unit of a number.

    All but `level` and `crude` are None if there is no estimate.

    Attributes:
      level: the level; "" for a number.
      coefficient: difference of linear predictors, with the same other covariates; 0 for the
        reference.
      standard_error: standard error of the coefficient, of sampling and noise; None for the
        reference.
      ratio: exponential of the coefficient, an odds ratio or a rate ratio; None if linear.
      low: lower end of the 95 % interval of the ratio; of the coefficient, if linear.
      high: upper end of that interval.
      p_value: two-sided p-value of no effect (Wald test).
      crude: counts of the level; None if levels are not counted.
    """

    level: str
    coefficient: float | None = None
    standard_error: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    crude: CrudeEstimate | None = None


@dataclass(frozen=True)
class CovariateEstimate(Encoded):
    """Estimates for a covariate, and the joint Wald test of its levels; None if it has no estimate.

    Attributes:
      covariate: the name of the covariate.
      levels: estimates for each level, the first of which is the reference; one for a number.
      statistic: chi-squared statistic, with the variance of sampling and noise.
      degrees: degrees of freedom.
      p_value: p-value of the covariate having no effect.
    """

    covariate: str
    levels: tuple[LevelEstimate, ...]
    statistic: float | None
    degrees: int
    p_value: float | None


@dataclass(frozen=True)
class Regression(Encoded):
    """A regression on main effects; None if the sums have no estimate.

    Attributes:
      family: the family of outcomes.
      ratio: name of the exponential of a coefficient; "" if linear.
      intercept: linear predictor at the reference levels, with all numbers 0.
      intercept_error: standard error of the intercept.
      covariates: estimates for each covariate.
      dispersion: variance of residuals, if linear; variance of counts divided by their mean, if
        poisson; None if logistic.
      reason: why there are no estimates; empty if there are, or if the table of counts shows it.
      warning: a reason for which estimates may be biased; empty if none is known.
    """

    family: str
    ratio: str
    intercept: float | None
    intercept_error: float | None
    covariates: tuple[CovariateEstimate, ...]
    dispersion: float | None = None
    reason: str = ""
    warning: str = ""


def covariate_estimate(
    covariate: str,
    levels: Sequence[str],
    effects: tuple[Reals, Reals] | None,
    places: Sequence[int],
    crude: Mapping[int, CrudeEstimate] | None = None,
    ratio: bool = True,
) -> CovariateEstimate:
    """Returns the estimates for a covariate.

    Args:
      covariate: its name.
      levels: names of its levels; one "" for a number.
      effects: coefficients `[j]` and their covariance `[j, j]`; None if there are none.
      places: the level of each coefficient.
      crude: counts by level.
      ratio: whether exponentials of coefficients are stated.
    """
    estimates = {0: LevelEstimate(levels[0], 0.0, ratio=1.0 if ratio else None)}
    statistic = None
    if effects is None:
        estimates = {}
    else:
        coefficients, covariance = effects
        for place, level in enumerate(places):
            error = math.sqrt(float(covariance[place, place]))
            estimates[int(level)] = wald(levels[level], float(coefficients[place]), error, ratio)
        if len(coefficients):
            statistic = float(coefficients @ np.linalg.solve(covariance, coefficients))
    stated = tuple(
        replace(estimates.get(n, LevelEstimate(name)), crude=(crude or {}).get(n))
        for n, name in enumerate(levels)
    )
    degrees = 0 if effects is None else len(effects[0])
    p_value = None if statistic is None else float(chi2.sf(statistic, degrees))
    return CovariateEstimate(covariate, stated, statistic, degrees, p_value)


class _Symmetric(Protocol):
    """A distribution that is symmetric around 0."""

    def isf(self, q: float) -> Any:
        """Returns the quantile of which larger values have probability `q`."""

    def sf(self, x: float) -> Any:
        """Returns the probability of values above `x`."""


def wald(
    level: str, coefficient: float, error: float, ratio: bool, distribution: _Symmetric = norm
) -> LevelEstimate:
    """Returns a coefficient with its standard error, interval, and p-value.

    Args:
      level: name of the level.
      coefficient: the coefficient.
      error: its standard error.
      ratio: whether the exponential is stated.
      distribution: distribution of the coefficient, standardised, if there is no effect.
    """
    margin = float(distribution.isf(0.025)) * error
    ends = (coefficient, coefficient - margin, coefficient + margin)
    p_value = float(2 * distribution.sf(abs(coefficient) / error))
    if not ratio:
        return LevelEstimate(level, coefficient, error, None, *ends[1:], p_value)
    exact, low, high = (math.exp(end) if abs(end) < _FINITE else None for end in ends)
    return LevelEstimate(level, coefficient, error, exact, low, high, p_value)
