"""Regression from noised sums of score and information at public coefficients.

Let b, U and A be averages over m rounds of the coefficients at which sums were released, and of
their sums of score and information (`privfed.analytics.regression.family`), divided by the factors
a and c. The estimate is one Newton step of maximum likelihood,

  t = b + A^-1 U,

which for linear regression is least squares. Let s and q be the standard deviations of the noise on
an entry of U and on an off-diagonal entry of A (its diagonal has sqrt(2) q), and g = t - b. The
variance is that of sampling and noise (delta method):

  V = f A^-1 + A^-1 ((s^2 + q^2 |g|^2) I + q^2 g g^T) A^-1,

with the dispersion f: 1 if logistic; the sum of squared residuals divided by degrees of freedom if
linear, or by the sum of means if poisson (quasi-likelihood, Wedderburn 1974). Squared residuals are
corrected for the noise in them. Noise in A biases t by q^2 A^-1 (A^-1 + tr(A^-1) I) g to second
order, which is subtracted.

There is no estimate (`NoEstimate`) if

- the least eigenvalue of A is below 2 q sqrt(k), which the noise in A alone reaches;
- a total that the family's `totals` returns (events and non-events, or the sum of counts) is below
  `_VISIBLE` standard deviations of its noise;
- rounds did not converge: the last step exceeds `_FARTHEST` (root mean square of the change of
  linear predictors), or the coefficients of the last round still moved by more than `_MOVED` and
  1.5 standard deviations of their noise, as they do if a covariate separates the outcomes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privfed.analytics.regression.family import Family
from privfed.analytics.tree import Reals

_VISIBLE = 3.0
_FARTHEST = 0.3
_MOVED = 0.07


class NoEstimate(ValueError):
    """The sums have no estimate; the message says why."""


@dataclass(frozen=True, eq=False)
class ScoreSums:
    """Averages over rounds of noised sums over clients, without the factors of `Amplitudes`.

    Attributes:
      coefficients: coefficients at which the sums were released, shape `[k]`.
      score: score, shape `[k]`.
      information: information, shape `[k, k]`.
      squares: sum of squared residuals; None for logistic regression.
      clients: noised number of usable clients.
      score_std: standard deviation of the noise on an entry of the score of one round.
      information_std: standard deviation of the noise on an off-diagonal entry of the information
        of one round.
      rounds: number of averaged rounds m.
      family: the family of outcomes.
      first: sums of score and information of the intercept in the first round; (0, 0) for linear
        regression.
      change: change of coefficients in the last round, shape `[k]`; None for linear regression,
        which takes one round.
    """

    coefficients: Reals
    score: Reals
    information: Reals
    squares: float | None
    clients: float
    score_std: float
    information_std: float
    rounds: int
    family: Family
    first: tuple[float, float] = (0.0, 0.0)
    change: Reals | None = None


@dataclass(frozen=True, eq=False)
class Fitted:
    """Estimates of a regression.

    Attributes:
      coefficients: estimated coefficients t, shape `[k]`.
      covariance: their covariance V, shape `[k, k]`.
      dispersion: the dispersion f.
    """

    coefficients: Reals
    covariance: Reals
    dispersion: float


def fitted(sums: ScoreSums) -> Fitted:
    """Returns the estimates from `sums`. Raises `NoEstimate` if there are none."""
    k, a = len(sums.score), sums.information
    of_matrix = sums.information_std / math.sqrt(sums.rounds)
    _refuse_few(sums)
    if float(np.linalg.eigvalsh(a).min()) <= max(2.0 * of_matrix * math.sqrt(k), 1e-9):
        raise NoEstimate(
            "the information on the covariates is within its noise: use more clients, fewer "
            "covariates, narrower ranges, and no level without clients"
        )
    inverse: Reals = np.linalg.inv(a).astype(np.float64)
    trace, squared = float(np.trace(inverse)), of_matrix**2
    first: Reals = np.asarray(inverse @ sums.score)
    _refuse_diverged(sums, first, inverse)
    bias = squared * inverse @ (inverse @ first + trace * first)
    step: Reals = np.asarray(first - bias)
    noise = (sums.score_std**2 / sums.rounds + squared * float(step @ step)) * np.eye(k)
    noise += squared * np.outer(step, step)
    dispersion = _dispersion(sums, step, inverse, noise)
    covariance = dispersion * inverse + inverse @ noise @ inverse
    return Fitted(sums.coefficients + step, covariance, dispersion)


def _refuse_few(sums: ScoreSums) -> None:
    """Raises `NoEstimate` if one of the family's `totals` is at most `_VISIBLE` times an upper
    bound on the standard deviation of its noise.
    """
    std = math.hypot(sums.score_std, math.sqrt(8.0) * sums.information_std)
    if any(total <= _VISIBLE * std for total in sums.family.totals(*sums.first)):
        raise NoEstimate(
            "too few outcomes are visible through the noise: check which entries state the outcome"
        )


def _refuse_diverged(sums: ScoreSums, step: Reals, inverse: Reals) -> None:
    """Raises `NoEstimate` if rounds did not converge, by the criterion in the module's docstring.

    Regressions of one round pass. `step` is A^-1 U, and `inverse` is A^-1.
    """
    if sums.change is None:
        return
    noise = sums.score_std / sums.rounds * np.sqrt((inverse**2).sum(1))
    far = math.sqrt(max(float(step @ sums.information @ step) / sums.information[0, 0], 0.0))
    if far > _FARTHEST or (np.abs(sums.change) > _MOVED + 1.5 * noise).any():
        raise NoEstimate(
            "the rounds did not converge: a covariate separates the outcomes, or ranges are too "
            "wide, or there is too much noise"
        )


def _dispersion(sums: ScoreSums, step: Reals, inverse: Reals, noise: Reals) -> float:
    """Returns the dispersion f. Raises `NoEstimate` if it is not positive.

    `step` is g, `inverse` A^-1, and `noise` the covariance of the noise in U - A g. This noise
    lowers the sum of squared residuals by tr(A^-1 `noise`) on average.
    """
    if sums.squares is None:
        return 1.0
    value = sums.squares / float(sums.information[0, 0])
    if sums.family.linear:
        quadratic = 2.0 * float(step @ sums.score) - float(step @ sums.information @ step)
        residual = sums.squares - quadratic + float((inverse * noise).sum())
        value = residual / (sums.clients - len(step))
    if value <= 0.0:
        raise NoEstimate("the squared residuals are within their noise: use more clients")
    return value
