"""Log-rank test and hazard ratios of groups, from noised counts of patients per bin of time.

Both follow from the score of a proportional-hazards model with a free baseline hazard per bin. For
events e_gk of group g in bin k, exposures E_gk (linear in the counts) and hazard ratios theta_g,
the score of group g is

  U_g = sum_k (e_gk - d_k R_gk),  d_k = sum_h e_hk,  R_gk = theta_g E_gk / sum_h theta_h E_hk.

Its variance is that of sampling plus sigma^2 J J^T, with J the derivatives of U by the noised cells
(delta method).

- Log-rank test: theta = 1, E = number at risk, hypergeometric sampling variance (Mantel 1966).
- Hazard ratios: the piecewise-exponential model, the maximum of a Poisson likelihood with exposures
  E (Holford 1980). Patients with an event or censored within a bin contribute half of it, except
  censored patients of the last bin, most of whom are observed to its end. The grouped Cox model
  with a complementary log-log link (Prentice & Gloeckler 1978) has the same hazard ratios, but its
  score is not linear in events, so that noise would bias the estimates.

The first bin in which the number at risk in all groups together is at most three standard
deviations of its noise, or in any group less than one, is omitted with all later bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2, norm

from accounting.documents import Encoded
from privfed.analytics.survival.curves import SurvivalCounts, exposure_sums, visible_counts
from privfed.analytics.tree import Reals

_Z = float(norm.isf(0.025))
_STEPS = 50
_LARGEST = 10.0
"""If the logarithm of a hazard ratio exceeds this magnitude, there is no estimate."""


@dataclass(frozen=True)
class LogRank(Encoded):
    """The log-rank test that all groups have the same survival.

    Attributes:
      statistic: chi-squared statistic; its variance is that of sampling and noise.
      degrees: degrees of freedom, the number of groups minus 1.
      p_value: p-value of the statistic.
    """

    statistic: float
    degrees: int
    p_value: float


@dataclass(frozen=True)
class HazardRatio(Encoded):
    """A group's hazard relative to the reference group's; its numbers are None if there is no
    estimate.

    Attributes:
      group: the group's name.
      reference: name of the group whose hazard is the denominator.
      ratio: the hazard ratio.
      low: lower end of its 95 % interval.
      high: upper end of its 95 % interval.
      p_value: two-sided p-value of a ratio of 1 (Wald test).
    """

    group: str
    reference: str
    ratio: float | None
    low: float | None
    high: float | None
    p_value: float | None


@dataclass(frozen=True, eq=False)
class _Model:
    """Noised events and exposures of g groups in the first v bins.

    The v bins precede the first one whose number at risk may be noise alone: over all groups, by
    `visible_counts`, or in one group, if below one standard deviation of its noise.

    Attributes:
      events: events, shape `[g, v]`.
      exposures: exposures, shape `[g, v]`.
      weights: weights with which a group's cells sum to its exposure in each bin, shape `[v, c]`.
      std: standard deviation of the noise on a cell.
    """

    events: Reals
    exposures: Reals
    weights: Reals
    std: float

    @classmethod
    def of(cls, counts: SurvivalCounts, within: float) -> _Model:
        """Returns the model in which a patient is not at risk for the fraction `within` of the bin
        in which its observation ends.

        Raises:
          ValueError: if there are fewer than two groups.
        """
        if len(counts.groups) < 2:
            raise ValueError("a comparison needs at least two groups")
        bins = counts.events.shape[1]
        risk = exposure_sums(bins, 0.0, 0.0)
        n, noise = counts.cells @ risk.T, counts.std * np.sqrt(risk.sum(1))
        pooled = visible_counts(n.sum(0), math.sqrt(len(n)) * noise)
        v = int((pooled & np.logical_and.accumulate((n >= noise).all(0))).sum())
        weights = exposure_sums(bins, within, within)[:v]
        return cls(counts.events[:, :v], counts.cells @ weights.T, weights, counts.std)

    def shares(self, log_ratios: Reals) -> Reals:
        """Returns the expected fraction of each bin's events in each group, `[g, v]`, at logarithms
        `[g]` of hazard ratios.
        """
        expected = np.exp(log_ratios)[:, None] * self.exposures
        return np.asarray(expected / expected.sum(0))

    def score(self, log_ratios: Reals) -> Reals:
        """Returns events minus expected events of each group, summed over bins, `[g]`."""
        return np.asarray((self.events - self.events.sum(0) * self.shares(log_ratios)).sum(1))

    def information(self, log_ratios: Reals, weights: Reals | float = 1.0) -> Reals:
        """Returns the sampling covariance of the score, `[g, g]`; `weights` multiply the bins'
        terms.
        """
        shares, events = self.shares(log_ratios), self.events.sum(0) * weights
        return np.asarray(np.diag(shares @ events) - (shares * events) @ shares.T)

    def noise(self, log_ratios: Reals) -> Reals:
        """Returns the covariance that the noise adds to the score, `[g, g]`."""
        groups, bins = self.events.shape
        ratios, shares = np.exp(log_ratios), self.shares(log_ratios)
        per_risk = self.events.sum(0) / (ratios[:, None] * self.exposures).sum(0)
        eye = np.eye(groups)
        by_exposure = per_risk * (shares[:, None] - eye[..., None]) * ratios[:, None]
        slopes = by_exposure @ self.weights
        slopes[..., :bins] += eye[..., None] - shares[:, None]
        flat = self.std * slopes.reshape(groups, -1)
        return np.asarray(flat @ flat.T)


def log_rank(counts: SurvivalCounts) -> LogRank:
    """Returns the log-rank test of all groups; its statistic accounts for the noise.

    Args:
      counts: the noised numbers of patients, with at least two groups.

    Raises:
      ValueError: if there are fewer than two groups.
    """
    model, equal = _Model.of(counts, within=0.0), np.zeros(len(counts.groups))
    total, events = model.exposures.sum(0), model.events.sum(0)
    factor = (total - events) / np.maximum(total - 1.0, 1.0)
    variance = model.information(equal, factor) + model.noise(equal)
    score, degrees = model.score(equal)[1:], len(counts.groups) - 1
    statistic = float(score @ np.linalg.pinv(variance[1:, 1:], hermitian=True) @ score)
    return LogRank(max(statistic, 0.0), degrees, float(chi2.sf(max(statistic, 0.0), degrees)))


def hazard_ratios(counts: SurvivalCounts, reference: str) -> tuple[HazardRatio, ...]:
    """Returns the hazard ratio of each other group to `reference`.

    Args:
      counts: the noised numbers of patients, with at least two groups.
      reference: the name of the group whose hazard is the denominator.

    Raises:
      ValueError: if there are fewer than two groups, or no group is named `reference`.
    """
    base = counts.groups.index(reference)
    others = [group for group in range(len(counts.groups)) if group != base]
    model = _Model.of(counts, within=0.5)
    fitted = _fitted(model, others)
    if fitted is None:
        return tuple(
            HazardRatio(counts.groups[group], reference, None, None, None, None) for group in others
        )
    square = np.ix_(others, others)
    inverse = np.linalg.inv(model.information(fitted)[square])
    variance = inverse @ (model.information(fitted) + model.noise(fitted))[square] @ inverse
    estimates, stds = fitted[others], np.sqrt(np.diag(variance))
    ends = np.exp(estimates + np.outer((0.0, -_Z, _Z), stds)).T
    p_values = 2 * norm.sf(np.abs(estimates) / stds)
    return tuple(
        HazardRatio(counts.groups[group], reference, *map(float, (*three, p_value)))
        for group, three, p_value in zip(others, ends, p_values, strict=True)
    )


def _fitted(model: _Model, others: list[int]) -> Reals | None:
    """Returns logarithms of hazard ratios `[g]` at which the score is 0, by Newton's method.

    `others` are the indices of the groups other than the reference, whose logarithm is 0. None if
    the method does not converge, or a logarithm exceeds `_LARGEST` in magnitude.
    """
    fitted, square = np.zeros(len(model.events)), np.ix_(others, others)
    for _ in range(_STEPS):
        information = model.information(fitted)[square]
        if not (np.linalg.eigvalsh(information) > 0.0).all():
            return None
        step = np.clip(np.linalg.solve(information, model.score(fitted)[others]), -1.0, 1.0)
        fitted[others] += step
        if np.abs(fitted).max() > _LARGEST:
            return None
        if np.abs(step).max() < 1e-10:
            return fitted
    return None
