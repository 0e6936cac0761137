"""Survival curves from noised counts of events and censored patients per time bin.

A patient (client) is counted in one cell: group x bin x event or censored. All estimates are
post-processing of one noised table. Within a bin, events precede censoring: a censored patient is
at risk for the whole bin, as if all times of a bin were at its right edge. Without noise, the
results are the textbook's:

- Kaplan-Meier: S_j = prod_{k <= j} (1 - e_k / n_k), n_k at risk (Kaplan & Meier 1958);
- Nelson-Aalen: A_j = sum_{k <= j} e_k / n_k (Nelson 1969; Aalen 1978);
- sampling variance of log S_j: sum_{k <= j} e_k / (n_k (n_k - e_k)) (Greenwood 1926), with
  intervals symmetric in log(-log S) (Kalbfleisch & Prentice 1980); that of A_j: the sum of
  e_k (n_k - e_k) / n_k^3 (Klein 1991), with intervals symmetric in log A.

With noise, n_k and n_k - e_k are sums of cells with Gaussian noise of known variance. Let L_j =
-log S_j, phi_j its Greenwood variance over L_j, and tau_j^2 its noise variance to first order
(delta method). The interval has all L with (estimate - L)^2 <= z^2 (phi_j L + tau_j^2), a score
interval that is also valid for few or no events (Wilson 1927). Estimates are corrected for the
second-order bias from noise. Simultaneous bands replace z by the 95 % quantile of the largest
standardised error over all bins (equal-precision bands, Nair 1984).

With `midpoint`, patients censored in a bin are at risk for half of it, except in the last bin
(actuarial estimate, Cutler & Ederer 1958): n_k is reduced by half of them. This removes most of the
bias that grouping causes if censoring times are spread over a bin.

A bin is visible if its number at risk and its number of survivors exceed three standard deviations
of their noise, and if all earlier bins are visible. After the last visible bin, the lower limit of
survival is 0, and the curve has at most one more step (in the next bin, if the number at risk there
is visible).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from accounting.documents import Encoded
from privfed.analytics.tree import Reals

_Z = float(norm.isf(0.025))
_VISIBLE = 3.0
"""A count is visible if it exceeds this number of standard deviations of its noise."""
_DRAWS = 8_000
_LEAST = 1e-12


@dataclass(frozen=True, eq=False)
class SurvivalCounts:
    """Numbers of patients per group, bin and outcome, with independent Gaussian noise on each.

    Attributes:
      edges: edges of the b bins, increasing, shape `[b + 1]`; bin j is [edges[j], edges[j + 1]).
      groups: names of the g groups.
      events: noised numbers of patients with an event in the bin, shape `[g, b]`.
      censored: noised numbers of patients whose observation ended in the bin without an event,
        shape `[g, b]`; the last bin includes all who are still under observation at its end.
      std: standard deviation of the noise on each number; 0 without noise.
    """

    edges: tuple[float, ...]
    groups: tuple[str, ...]
    events: Reals
    censored: Reals
    std: float

    def __post_init__(self) -> None:
        shape = len(self.groups), len(self.edges) - 1
        if min(shape) < 1 or self.events.shape != shape or self.censored.shape != shape:
            raise ValueError(f"events and censored must have shape {shape}, groups by bins")
        if not (np.diff(self.edges) > 0).all() or not self.std >= 0.0:
            raise ValueError("edges must increase, and std must not be negative")

    @property
    def cells(self) -> Reals:
        """The noised numbers of each group, events before censored, shape `[g, 2 b]`."""
        return np.concatenate([self.events, self.censored], axis=1)


@dataclass(frozen=True)
class SurvivalEstimate(Encoded):
    """A `value` and its 95 % interval; None marks one that is infinite or is not reached."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class SurvivalPoint(Encoded):
    """Estimates of one group at the right edge of a bin.

    Attributes:
      time: the right edge of the bin.
      at_risk: patients at risk at the start of the bin; the interval covers noise only.
      survival: Kaplan-Meier estimate with its pointwise interval.
      band: the same estimate with the curve's simultaneous 95 % band.
      cumulative_hazard: Nelson-Aalen estimate with its pointwise interval.
      visible: True if this bin is visible (see the module).
    """

    time: float
    at_risk: SurvivalEstimate
    survival: SurvivalEstimate
    band: SurvivalEstimate
    cumulative_hazard: SurvivalEstimate
    visible: bool


@dataclass(frozen=True)
class SurvivalCurve(Encoded):
    """A group's survival curve.

    Attributes:
      group: the group's name.
      points: estimates at the right edge of each bin.
      restricted_mean: restricted mean survival time from the first edge to the last.
      median: median survival time; its value or an end of its interval is None if not reached.
    """

    group: str
    points: tuple[SurvivalPoint, ...]
    restricted_mean: SurvivalEstimate
    median: SurvivalEstimate


def survival_curves(
    counts: SurvivalCounts, rng: np.random.Generator | None = None, *, midpoint: bool = False
) -> tuple[SurvivalCurve, ...]:
    """Returns the survival curve of each group.

    Restricted mean and median interpolate survival linearly within a bin (actuarial convention).

    Args:
      counts: the noised numbers of patients.
      rng: randomness for the quantiles of simultaneous bands; None: seeded with 0, so that equal
        counts have equal curves.
      midpoint: True for the actuarial estimate, False for Kaplan-Meier and Nelson-Aalen.
    """
    effective = exposure_sums(len(counts.edges) - 1, 0.0, 0.5 if midpoint else 0.0)
    rng = np.random.default_rng(0) if rng is None else rng
    return tuple(
        _curve(group, np.array(counts.edges), cells, effective, counts.std, rng)
        for group, cells in zip(counts.groups, counts.cells, strict=True)
    )


def exposure_sums(bins: int, event: float, censored: float) -> Reals:
    """Returns weights `[b, 2 b]` by which a group's cells (events, then censored) sum to exposures.

    A patient's exposure in a bin is the fraction of the bin for which the patient is at risk.

    Args:
      bins: number of bins b.
      event: fraction of a bin for which a patient with an event in it is not at risk.
      censored: the same for a patient censored in it; 0 in the last bin.
    """
    upto, within = np.triu(np.ones((bins, bins))), np.eye(bins)
    last = np.append(np.ones(bins - 1), 0.0)
    return np.concatenate([upto - event * within, upto - censored * within * last], axis=1)


def visible_counts(counts: Reals, noise: Reals) -> NDArray[np.bool_]:
    """Returns a mask `[b]` of the bins before the first count that may be noise alone.

    Args:
      counts: counts, shape `[b]`; one up to 3 standard deviations of its noise may be noise alone.
      noise: standard deviations of the noise on `counts`, shape `[b]`.
    """
    return np.logical_and.accumulate(counts > np.maximum(_VISIBLE * noise, _LEAST))


@dataclass(frozen=True, eq=False)
class _Hazard:
    """Estimates of a cumulative hazard at the right edges of the first v bins, with variances.

    Attributes:
      raw: estimates corrected for bias from noise, `[v]`.
      monotone: non-decreasing values closest to `raw` in the maximum norm, but not below 0, `[v]`.
      relative: sampling variance divided by the cumulative hazard, `[v]`.
      noise: covariance of the noise in `raw`, `[v, v]`.
      exact: True if the counts have no noise.
    """

    raw: Reals
    monotone: Reals
    relative: Reals
    noise: Reals
    exact: bool

    @classmethod
    def of(cls, steps: Reals, rates: Reals, slopes: Reals, std: float) -> _Hazard:
        """Returns the cumulative hazard with the increments `steps`.

        Args:
          steps: increment of the hazard in each bin, `[v]`.
          rates: sampling variance of each increment divided by the increment, `[v]`.
          slopes: derivatives of the increments with respect to the noised cells, `[v, c]`.
          std: standard deviation of the noise on a cell.
        """
        raw, slopes = np.cumsum(steps), std * np.cumsum(slopes, axis=0)
        middle = np.maximum.accumulate(raw) + np.minimum.accumulate(raw[::-1])[::-1]
        monotone = np.maximum(middle / 2, 0.0)
        weights = np.diff(monotone, prepend=0.0) + _LEAST
        relative = np.cumsum(weights * rates) / np.cumsum(weights)
        return cls(raw, monotone, relative, slopes @ slopes.T, std == 0.0)

    @property
    def covariance(self) -> Reals:
        """The covariance of the estimates from sampling and noise together, `[v, v]`."""
        sampling = self.relative * self.monotone
        return np.asarray(np.minimum.outer(sampling, sampling) + self.noise)

    def limits(self, z: float) -> tuple[Reals, Reals]:
        """Returns both limits `[v]` at `z` standard deviations, widened to contain `monotone`."""
        half = z**2 * self.relative / 2
        square = z**2 * (self.relative * self.raw + np.diag(self.noise)) + half**2
        root = np.sqrt(np.maximum(square, 0.0))
        low, high = self.raw + half - root, self.raw + half + root
        if self.exact:
            some = self.raw > 0.0
            factor = np.exp(z * np.sqrt(self.relative / np.where(some, self.raw, 1.0)))
            low = np.where(some, self.raw / factor, 0.0)
            high = np.where(some, self.raw * factor, high)
        return np.clip(low, 0.0, self.monotone), np.maximum(high, self.monotone)

    def widest(self, rng: np.random.Generator) -> float:
        """Returns the 95 % quantile of the largest standardised error in any bin, at least 1.96."""
        covariance = self.covariance
        stds = np.sqrt(np.diag(covariance))
        covariance = covariance[np.ix_(stds > 0.0, stds > 0.0)]
        if not len(covariance):
            return _Z
        values, vectors = np.linalg.eigh(covariance)
        factor = vectors * np.sqrt(np.maximum(values, 0.0)) / stds[stds > 0.0, None]
        errors = np.abs(rng.standard_normal((_DRAWS, len(values))) @ factor.T).max(axis=1)
        return max(float(np.quantile(errors, 0.95)), _Z)


def _curve(
    group: str, edges: Reals, cells: Reals, risk: Reals, std: float, rng: np.random.Generator
) -> SurvivalCurve:
    """Returns a group's curve from its `cells` `[2 b]`; `risk @ cells` are the numbers at risk."""
    bins = len(edges) - 1
    events = np.eye(bins, 2 * bins)
    n, noise = risk @ cells, std * np.linalg.norm(risk, axis=1)
    s, survivors_noise = n - cells[:bins], std * np.linalg.norm(risk - events, axis=1)
    at_risk = visible_counts(n, noise)
    visible = at_risk & visible_counts(s, survivors_noise)
    v, w = int(visible.sum()), int(at_risk.sum())
    survival = _log_survival(n[:v], s[:v], risk[:v], events[:v], noise[:v], std)
    hazard = _nelson_aalen(n[:w], cells[:w], risk[:w], events[:w], noise[:w], std)
    value = np.exp(-_extended(survival.monotone, bins))
    if v < w:
        value[v:] *= min(max(s[v] / n[v], 0.0), 1.0)
    pointwise, band = (_between(value, survival.limits(z)) for z in (_Z, survival.widest(rng)))
    low, high = hazard.limits(_Z)
    total = _extended(hazard.monotone, bins)
    low = _extended(low, bins)
    counted = np.cumsum((cells[:bins] + cells[bins:])[::-1])[::-1]
    margin = _Z * std * np.sqrt(2.0 * np.arange(bins, 0, -1))
    points = tuple(
        SurvivalPoint(
            time=float(edges[k + 1]),
            at_risk=_estimate(*np.maximum(counted[k] + np.array([0, -1, 1]) * margin[k], 0.0)),
            survival=_estimate(value[k], *pointwise[:, k]),
            band=_estimate(value[k], *band[:, k]),
            cumulative_hazard=_estimate(total[k], low[k], high[k] if k < w else math.inf),
            visible=bool(visible[k]),
        )
        for k in range(bins)
    )
    mean = _restricted_mean(np.diff(edges), survival, value, pointwise)
    return SurvivalCurve(group, points, mean, _median(edges, value, pointwise))


def _log_survival(
    n: Reals, s: Reals, risk: Reals, events: Reals, noise: Reals, std: float
) -> _Hazard:
    """Returns -log S in the visible bins: sums of log(n / s), for n at risk and s survivors."""
    bias = ((noise / n) ** 2 - (noise**2 - std**2) / s**2) / 2
    steps = np.log(n / s)
    rates = np.where(n - s == 0.0, 1 / n, (n - s) / (n * s) / np.where(steps == 0.0, 1.0, steps))
    slopes = risk / n[:, None] - (risk - events) / s[:, None]
    return _Hazard.of(steps + bias, rates, slopes, std)


def _nelson_aalen(
    n: Reals, cells: Reals, risk: Reals, events: Reals, noise: Reals, std: float
) -> _Hazard:
    """Returns the Nelson-Aalen estimate from n at risk and `cells` events per bin of visible n."""
    bias = (std / n) ** 2 - cells * noise**2 / n**3
    slopes = events / n[:, None] - risk * (cells / n**2)[:, None]
    rates = (1 - np.clip(cells / n, 0.0, 1.0)) / n
    return _Hazard.of(cells / n + bias, rates, slopes, std)


def _restricted_mean(
    widths: Reals, survival: _Hazard, value: Reals, pointwise: Reals
) -> SurvivalEstimate:
    """Returns the area under the curve; after visible bins, limits are areas under `pointwise`."""
    weights = (widths + np.append(widths[1:], 0.0)) / 2
    v = len(survival.raw)
    slopes = weights[:v] * value[:v]
    margin = _Z * math.sqrt(max(float(slopes @ survival.covariance @ slopes), 0.0))
    area = widths[0] / 2 + float(weights @ value)
    low, high = weights[v:] @ (pointwise[:, v:] - value[v:]).T
    return _estimate(area, max(area - margin + low, 0.0), min(area + margin + high, widths.sum()))


def _median(edges: Reals, value: Reals, pointwise: Reals) -> SurvivalEstimate:
    """Returns the time at which survival is 1/2, and those of its limits (Brookmeyer & Crowley)."""
    low, high = pointwise
    early = _crossing(edges, np.minimum.accumulate(low))
    late = _crossing(edges, np.maximum.accumulate(high[::-1])[::-1])
    return SurvivalEstimate(_crossing(edges, value), early, late)


def _crossing(edges: Reals, falling: Reals) -> float | None:
    """Returns the time at which a curve falls to 1/2; None if it does not. The curve is 1 at the
    first of `edges`, has the values `falling` at the others, and is linear in between.
    """
    curve = np.append(1.0, falling)
    below = np.flatnonzero(curve <= 0.5)
    if not below.size:
        return None
    k = int(below[0])
    share = (curve[k - 1] - 0.5) / (curve[k - 1] - curve[k])
    return float(edges[k - 1] + share * (edges[k] - edges[k - 1]))


def _between(value: Reals, limits: tuple[Reals, Reals]) -> Reals:
    """Returns limits of survival `[2, b]` from those of -log S in v bins; then the lower is 0."""
    most = np.exp(-_extended(limits[0], len(value)))
    least = np.zeros_like(value)
    least[: len(limits[1])] = np.exp(-limits[1])
    return np.stack([least, most])


def _extended(values: Reals, bins: int) -> Reals:
    """Returns `values` with the last one (or 0) repeated until there are `bins` entries."""
    last = values[-1] if len(values) else 0.0
    return np.append(values, np.full(bins - len(values), last))


def _estimate(value: float, low: float, high: float) -> SurvivalEstimate:
    ends = (float(end) if math.isfinite(end) else None for end in (value, low, high))
    return SurvivalEstimate(*ends)
