"""Logistic regression on levels of covariates, from noised counts of each combination of levels.

A client is in one cell: its combination c of levels, and whether the outcome occurred. Let y_c and
z_c be the noised counts with and without the outcome, n_c = y_c + z_c, and x_c the row of the
design: 1 for the intercept, and an indicator of each level except the first of its covariate (the
reference). Estimates solve the score equation of maximum likelihood,

  U(b) = sum_c x_c (y_c - n_c p_c) = 0,  p_c = 1 / (1 + exp(-x_c b)).

U is linear in the counts, so noise of mean 0 leaves it unbiased, also in cells that are nearly
empty, and estimates are consistent. Counts are never truncated at 0, which would bias U. The
variance is that of sampling and noise (delta method):

  V = A^-1 (A + sigma^2 B) A^-1,
  A = sum_c n_c p_c q_c x_c x_c^T,  B = sum_c (p_c^2 + q_c^2) x_c x_c^T,  q_c = 1 - p_c.

Without noise, it is the inverse of the information, as in textbooks. The same noise is in U and A,
and U is curved. Both bias estimates in the second order, by about

  -sigma^2 A^-1 sum_c p_c q_c (q_c - p_c) x_c (h_c + n_c v_c / 2),
  h_c = x_c^T A^-1 x_c,  v_c = x_c^T A^-1 B A^-1 x_c,

which is subtracted (Cox & Snell 1968). The textbook's bias from sampling remains.

A level is visible if its number of clients with the outcome and that without it both exceed two
standard deviations of their noise. Clients of other levels are omitted, and these levels have no
estimates; if a reference is omitted, neither have the other levels of its covariate. (Without
noise, the coefficient of a level without clients of either kind is infinite, and this omission is
its limit.) There are no estimates at all if the noise in A exceeds half of A (Frobenius norm,
relative to A), or if the bias from noise exceeds the standard error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from privfed.analytics.regression.estimates import (
    CrudeEstimate,
    Regression,
    Z,
    covariate_estimate,
)
from privfed.analytics.tree import Reals
from privfed.core.vector import Indices

_STEPS = 50
_LARGEST = 20.0
"""If a coefficient exceeds this magnitude, there is no estimate."""
_VISIBLE = 2.0
"""A count is visible if it exceeds this number of standard deviations of its noise."""
_NOISIEST = 0.5
"""If the relative noise in the information (Frobenius norm) exceeds this, there is no estimate."""
_LEAST = 1e-9


@dataclass(frozen=True, eq=False)
class OutcomeCounts:
    """Numbers of clients by levels of covariates and outcome, with independent Gaussian noise on
    each.

    Attributes:
      covariates: names of the covariates.
      levels: names of the levels of each covariate; the first is the reference.
      occurred: noised numbers of clients with the outcome; an axis for each covariate, of the
        length of its levels.
      others: noised numbers of clients without the outcome, of the same shape.
      std: standard deviation of the noise on each number; 0 without noise.
    """

    covariates: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]
    occurred: Reals
    others: Reals
    std: float

    def __post_init__(self) -> None:
        shape = tuple(map(len, self.levels))
        if not shape or min(shape) < 2 or len(self.covariates) != len(shape):
            raise ValueError("every covariate must have a name and two levels or more")
        if self.occurred.shape != shape or self.others.shape != shape or not self.std >= 0.0:
            raise ValueError(f"counts must have shape {shape}, and std must not be negative")


@dataclass(frozen=True, eq=False)
class _Model:
    """The c cells (combinations of visible levels) that enter the score, and their rows of the
    design.

    Attributes:
      occurred: noised number of clients with the outcome in each cell, shape `[c]`.
      total: noised number of all clients in each cell, shape `[c]`.
      design: row x of the design for each cell, shape `[c, k]`.
      std: standard deviation of the noise on a count.
    """

    occurred: Reals
    total: Reals
    design: Reals
    std: float

    def weighted(self, weights: Reals) -> Reals:
        """Returns the sum over cells of `weights` `[c]` times x x^T, shape `[k, k]`."""
        return np.asarray(self.design.T @ (weights[:, None] * self.design))

    def fitted(self) -> tuple[Reals, Reals] | None:
        """Returns coefficients `[k]` and their covariance `[k, k]`, by Newton's method.

        None if it does not converge, the information is not positive definite, a coefficient
        exceeds `_LARGEST`, or `_corrected` returns None.
        """
        fitted = np.zeros(self.design.shape[1])
        for _ in range(_STEPS):
            p = expit(self.design @ fitted)
            information = self.weighted(self.total * p * (1 - p))
            if not (np.linalg.eigvalsh(information) > _LEAST).all():
                return None
            score = self.design.T @ (self.occurred - self.total * p)
            step = np.clip(np.linalg.solve(information, score), -1.0, 1.0)
            fitted += step
            if np.abs(fitted).max() > _LARGEST:
                return None
            if np.abs(step).max() < 1e-10:
                return self._corrected(fitted)
        return None

    def _corrected(self, fitted: Reals) -> tuple[Reals, Reals] | None:
        """Returns coefficients corrected for the bias from noise, and their covariance.

        None if the relative noise in the information exceeds `_NOISIEST`, or the bias of a
        coefficient exceeds its standard error.
        """
        p = expit(self.design @ fitted)
        pq = p * (1 - p)
        inverse: Reals = np.linalg.inv(self.weighted(self.total * pq)).astype(np.float64)
        h = self._squares(inverse)
        if self.std * math.sqrt(2.0 * float(((pq * h) ** 2).sum())) > _NOISIEST:
            return None
        noise = np.asarray(self.std**2 * inverse @ self.weighted(p**2 + (1 - p) ** 2) @ inverse)
        curved = self.std**2 * h + self.total * self._squares(noise) / 2
        bias = np.asarray(-inverse @ (self.design.T @ (pq * (1 - 2 * p) * curved)))
        if (bias**2 > np.diag(inverse + noise)).any():
            return None
        return fitted - bias, inverse + noise

    def _squares(self, form: Reals) -> Reals:
        """Returns x^T `form` x of each cell's row x of the design, `[c]`."""
        return np.asarray(((self.design @ form) * self.design).sum(1))


def logistic_regression(counts: OutcomeCounts) -> Regression:
    """Returns the logistic regression of the outcome on the main effects of all covariates.

    Args:
      counts: the noised numbers of clients.
    """
    margins = [_margins(counts, axis) for axis in range(len(counts.covariates))]
    visible = [np.flatnonzero(each.visible) for each in margins]
    fitted = _model(counts, visible).fitted() if all(map(len, visible)) else None
    known = [fitted is not None and shown[:1] == [0] for shown in visible]
    starts = np.cumsum([1, *(max(len(shown) - 1, 0) for shown in visible)])
    covariates = []
    for axis, (margin, shown) in enumerate(zip(margins, visible, strict=True)):
        some, levels = slice(starts[axis], starts[axis + 1]), counts.levels[axis]
        effects = (fitted[0][some], fitted[1][some, some]) if fitted and known[axis] else None
        crude = {level: margin.crude(level) for level in range(len(levels))}
        name = counts.covariates[axis]
        covariates.append(covariate_estimate(name, levels, effects, [*shown[1:]], crude))
    estimated: tuple[float | None, float | None] = (None, None)
    if fitted is not None and all(known):
        estimated = float(fitted[0][0]), math.sqrt(fitted[1][0, 0])
    return Regression("logistic", "odds ratio", *estimated, tuple(covariates))


@dataclass(frozen=True, eq=False)
class _Margins:
    """Noised numbers of clients at each level of a covariate, at any level of the others.

    Attributes:
      occurred: those with the outcome, shape `[l]`.
      others: those without the outcome, shape `[l]`.
      noise: standard deviation of the noise on each number.
    """

    occurred: Reals
    others: Reals
    noise: float

    @property
    def visible(self) -> NDArray[np.bool_]:
        """A mask `[l]` of the levels at which both counts, with and without the outcome, exceed 2
        standard deviations of their noise (without noise: 1e-9).
        """
        least = max(_VISIBLE * self.noise, _LEAST)
        return np.asarray(np.minimum(self.occurred, self.others) > least)

    def crude(self, level: int) -> CrudeEstimate:
        """Returns the counts of a level, and the proportion p with its 95 % score interval.

        The interval holds all p with (y - n p)^2 <= z^2 (n p q + noise^2 (p^2 + q^2)): without
        noise, the interval of Wilson (1927).
        """
        y, n = float(self.occurred[level]), float(self.occurred[level] + self.others[level])
        square, noise = Z**2, (Z * self.noise) ** 2
        a, b = n**2 + square * n - 2 * noise, y * n + square * n / 2 - noise
        value = min(max(y / n, 0.0), 1.0) if n > 0.0 else None
        low, high = 0.0, 1.0
        if n > 0.0 and a > 0.0:
            root = math.sqrt(max(b**2 - a * (y**2 - noise), 0.0))
            low, high = (min(max((b + end) / a, 0.0), 1.0) for end in (-root, root))
        return CrudeEstimate(n, y, value, low, high)


def _margins(counts: OutcomeCounts, axis: int) -> _Margins:
    """Returns the noised numbers at each level of the covariate with the axis `axis`."""
    others = tuple(each for each in range(counts.occurred.ndim) if each != axis)
    added = counts.occurred.size / counts.occurred.shape[axis]
    noise = counts.std * math.sqrt(added)
    return _Margins(counts.occurred.sum(others), counts.others.sum(others), noise)


def _model(counts: OutcomeCounts, visible: list[Indices]) -> _Model:
    """Returns the model of clients at visible levels.

    `visible` are the indices of each covariate's visible levels; the first of them is the
    reference, with coefficient 0.
    """
    chosen = np.ix_(*visible)
    occurred, others = counts.occurred[chosen], counts.others[chosen]
    columns = [np.ones(occurred.size)]
    for axis, places in enumerate(np.indices(occurred.shape).reshape(occurred.ndim, -1)):
        columns += [places == level for level in range(1, len(visible[axis]))]
    design = np.stack(columns, axis=1).astype(np.float64)
    return _Model(occurred.ravel(), (occurred + others).ravel(), design, counts.std)
