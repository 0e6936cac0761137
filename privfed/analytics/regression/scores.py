"""Regression from noised sums of score and information at public coefficients.

Let b, U and A be averages over m rounds of the coefficients at which sums were released, and of
their sums of score and information (`privfed.analytics.regression.family`), without the factors a
and c. The estimate is one Newton step of maximum likelihood,

  t = b + A^-1 U,

which for linear regression is least squares. Let s and q be the standard deviations of the noise on
an entry of U and on an off-diagonal entry of A (its diagonal has sqrt(2) q), and g = t - b. The
variance is that of sampling and noise (delta method):

  V = f A^-1 + A^-1 ((s^2 + q^2 |g|^2) I + q^2 g g^T) A^-1,

with the dispersion f: 1 if logistic; the sum of squared residuals divided by degrees of freedom if
linear, or by the sum of means if poisson (quasi-likelihood, Wedderburn 1974). Squared residuals are
corrected for the noise in them. Noise in A biases t by q^2 A^-1 (A^-1 + tr(A^-1) I) g to second
order, which is subtracted.

There is no estimate if noise dominates: if the noise in A exceeds `_NOISIEST` of A (Frobenius norm,
relative to A), or if the noise of a single round moves linear predictors by more than the family's
`farthest` (root mean square), so that rounds are released too far from the estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privfed.analytics.regression.family import Family
from privfed.analytics.tree import Reals

_NOISIEST = 0.6


@dataclass(frozen=True, eq=False)
class ScoreSums:
    """Averages over rounds of noised sums over clients, without factors.

    Attributes:
      coefficients: coefficients at which the sums were released, shape `[k]`.
      score: score, shape `[k]`.
      information: information, shape `[k, k]`.
      squares: sum of squared residuals; None if it was not released.
      clients: number of usable clients.
      score_std: standard deviation of the noise on an entry of the score of one round.
      information_std: that on an off-diagonal entry of the information of one round.
      rounds: number of averaged rounds m.
      family: the family of outcomes.
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


@dataclass(frozen=True, eq=False)
class Fitted:
    """Estimates `[k]`, their covariance `[k, k]`, and the dispersion."""

    coefficients: Reals
    covariance: Reals
    dispersion: float


def fitted(sums: ScoreSums) -> Fitted | None:
    """Returns the estimates from `sums`; None if they are too close to their noise."""
    k, a = len(sums.score), sums.information
    if not (np.linalg.eigvalsh(a) > 0.0).all():
        return None
    inverse: Reals = np.linalg.inv(a).astype(np.float64)
    trace = float(np.trace(inverse))
    squared = sums.information_std**2 / sums.rounds
    if math.sqrt(squared * (trace**2 + float((inverse**2).sum()))) > _NOISIEST:
        return None
    one_round = sums.score_std * math.sqrt(trace / a[0, 0])
    if one_round > sums.family.farthest:
        return None
    first: Reals = np.asarray(inverse @ sums.score)
    bias = squared * inverse @ (inverse @ first + trace * first)
    step: Reals = np.asarray(first - bias)
    noise = (sums.score_std**2 / sums.rounds + squared * float(step @ step)) * np.eye(k)
    noise += squared * np.outer(step, step)
    dispersion = _dispersion(sums, step, inverse, noise)
    if dispersion is None:
        return None
    covariance = dispersion * inverse + inverse @ noise @ inverse
    return Fitted(sums.coefficients + step, covariance, dispersion)


def _dispersion(sums: ScoreSums, step: Reals, inverse: Reals, noise: Reals) -> float | None:
    """Returns the dispersion f; None if it is not positive.

    The noise of U and A lowers the sum of squared residuals by tr(A^-1 `noise`) on average.
    """
    if sums.squares is None:
        return 1.0
    value = sums.squares / float(sums.information[0, 0])
    if sums.family.linear:
        quadratic = 2.0 * float(step @ sums.score) - float(step @ sums.information @ step)
        residual = sums.squares - quadratic + float((inverse * noise).sum())
        value = residual / (sums.clients - len(step))
    return value if value > 0.0 else None
