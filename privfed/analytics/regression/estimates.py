"""Estimates of a regression, with intervals and tests that account for sampling and noise."""

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
"""A ratio, or an end of its interval, whose logarithm has this magnitude or more is None."""


@dataclass(frozen=True)
class CrudeEstimate(Encoded):
    """Noised counts of the clients at one level of a covariate, over all levels of the others.

    Attributes:
      clients: noised number of clients.
      occurred: noised number of clients with the outcome.
      proportion: proportion with the outcome; None if `clients` is not positive.
      low: lower end of the proportion's 95 % interval; 0 if the noise leaves no bound.
      high: upper end of the proportion's 95 % interval; 1 if the noise leaves no bound.
    """

    clients: float
    occurred: float
    proportion: float | None
    low: float
    high: float


@dataclass(frozen=True)
class LevelEstimate(Encoded):
    """The effect of a covariate's level relative to its reference level, or of one more unit of a
    number.

    All but `level` and `crude` are None if there is no estimate.

    Attributes:
      level: name of the level; "" for a number.
      coefficient: difference of linear predictors, with the same other covariates; 0 for the
        reference.
      standard_error: standard error of the coefficient, of sampling and noise; None for the
        reference.
      ratio: exponential of the coefficient, an odds ratio or a rate ratio; None for linear
        regression, or if not finite.
      low: lower end of the 95 % interval of the ratio; of the coefficient, in linear regression.
      high: upper end of that interval.
      p_value: two-sided p-value of no effect (Wald test).
      crude: noised counts of clients at the level; None if the release has no counts.
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
    """Estimates for a covariate, and the joint Wald test of its levels.

    Attributes:
      covariate: the name of the covariate.
      levels: estimates for each level, the first of which is the reference; one for a number.
      statistic: chi-squared statistic; its variance is that of sampling and noise. None without a
        test, and for a test that is not chi-squared (random effects).
      degrees: degrees of freedom.
      p_value: p-value of the hypothesis that the covariate has no effect; None without a test.
    """

    covariate: str
    levels: tuple[LevelEstimate, ...]
    statistic: float | None
    degrees: int
    p_value: float | None


@dataclass(frozen=True)
class Regression(Encoded):
    """The estimates of a regression on the main effects of covariates.

    Attributes:
      family: "logistic", "linear" or "poisson".
      ratio: name of the exponential of a coefficient; "" for linear regression.
      intercept: linear predictor at the reference levels, with all numbers 0 and exposure 1; None
        without an estimate.
      intercept_error: standard error of the intercept; None without an estimate.
      covariates: estimates for each covariate.
      dispersion: variance of residuals (linear), or variance of counts divided by their mean
        (poisson); None for logistic regression, or without an estimate.
      reason: explanation if there are no estimates, else empty; always empty for a regression from
        counts of cells.
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
      covariate: the covariate's name.
      levels: names of its levels, the reference first; one "" for a number.
      effects: the j coefficients `[j]` and their covariance `[j, j]`; None if there is no estimate.
      places: index in `levels` of each coefficient, shape `[j]`.
      crude: counts of clients at a level, by the level's index; None: no counts.
      ratio: whether exponentials of coefficients are stated; otherwise they are None.
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
    """A probability distribution that is symmetric around 0."""

    def isf(self, q: float) -> Any:
        """Returns the value that is exceeded with probability `q`."""

    def sf(self, x: float) -> Any:
        """Returns the probability of exceeding `x`."""


def wald(
    level: str, coefficient: float, error: float, ratio: bool, distribution: _Symmetric = norm
) -> LevelEstimate:
    """Returns a coefficient with its standard error, 95 % interval, and the p-value of a Wald test.

    Args:
      level: name of the level.
      coefficient: the coefficient.
      error: its standard error.
      ratio: whether the exponential of the coefficient is stated.
      distribution: distribution of the coefficient divided by its error if there is no effect.
    """
    margin = float(distribution.isf(0.025)) * error
    ends = (coefficient, coefficient - margin, coefficient + margin)
    p_value = float(2 * distribution.sf(abs(coefficient) / error))
    if not ratio:
        return LevelEstimate(level, coefficient, error, None, *ends[1:], p_value)
    exact, low, high = (math.exp(end) if abs(end) < _FINITE else None for end in ends)
    return LevelEstimate(level, coefficient, error, exact, low, high, p_value)
