"""Estimates range, mean, standard deviation and quantiles of a column's numbers from noised counts.

The counts are those of numbers per cell (`privfed.analytics.cells`). All statistics are
post-processing of one release. Stated values follow from one non-negative histogram, so they are
consistent with each other. The 95 % intervals follow from the unbiased estimates on the tree of
cells, whose noise is Gaussian (or nearly), and allow for any position of a number within its cell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from privfed.analytics.cells import Cells
from privfed.analytics.statistics_file import CellCount, IntervalEstimate, NumberStatistics
from privfed.analytics.tree import AgreeingCounts, Reals

PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)
TWO_SIDED = float(norm.isf(0.025))
"""Half the width of a two-sided 95 % normal interval, in standard deviations (1.96)."""
_SEEN = 0.01
"""Upper bound on the probability that noise alone makes any node without numbers look occupied."""


@dataclass(frozen=True, eq=False)
class CountedNumbers:
    """Noised and estimated counts of a column's numbers, on the n nodes of the tree of cells.

    Attributes:
      cells: the cells.
      agreed: unbiased estimates of the nodes' counts, consistent on the tree.
      counts: non-negative estimates of the nodes' counts, shape `[n]`.
      measured: noised count of each node as released, shape `[n]`.
      stds: standard deviation of the noise on each of `measured`, shape `[n]`.
    """

    cells: Cells
    agreed: AgreeingCounts
    counts: Reals
    measured: Reals
    stds: Reals

    def summary(self) -> NumberStatistics | None:
        """Returns the statistics of the numbers; None if none are visible through the noise."""
        limits = visible_range(self.cells, self.measured, self.stds)
        total = float(self.counts[self.cells.nodes].sum())
        if limits is None or total <= 0.0:
            return None
        mean, std = self._moments(limits)
        return NumberStatistics(
            count=self._count(self.cells.nodes, total),
            range=limits,
            outside=self._outside(limits, total),
            mean=mean,
            std=std,
            quantiles={f"{p:g}": self._quantile(p, total, limits) for p in PROBABILITIES},
            histogram=self._histogram(),
        )

    def _linear(self, weights: Reals) -> tuple[Reals, Reals]:
        """Returns estimates of weighted sums of cells' counts, and their standard deviations.

        The weights have shape `[f, c]`, for f sums over c cells; both results have shape `[f]`.
        """
        of_nodes = np.zeros((len(weights), len(self.cells.tree)))
        of_nodes[:, self.cells.nodes] = weights
        return self.agreed.linear(of_nodes)

    def _count(self, nodes: NDArray[np.int64], value: float) -> IntervalEstimate:
        weights = np.zeros((1, len(self.cells.tree)))
        weights[0, nodes] = 1.0
        (estimate,), (std,) = self.agreed.linear(weights)
        return interval(value, estimate, std, least=0.0)

    def _histogram(self) -> list[CellCount]:
        """Returns the cells whose non-negative estimate is above 0, with their counts."""
        held = np.flatnonzero(self.counts[self.cells.nodes] > 0.0)
        estimates, stds = self._linear(np.eye(len(self.cells.nodes))[held])
        return [
            CellCount(
                low=_bound(self.cells.lows[cell]),
                high=_bound(self.cells.highs[cell]),
                count=interval(self.counts[self.cells.nodes[cell]], estimate, std, 0.0),
            )
            for cell, estimate, std in zip(held, estimates, stds, strict=True)
        ]

    def _outside(self, limits: tuple[float, float], total: float) -> IntervalEstimate:
        """Returns the fraction of the `total` numbers in cells beyond `limits`, the visible range.

        Noise affects the choice of the range, too. The interval holds for all ranges that might
        have been chosen, by a union bound over pairs of cells.
        """
        low, high = limits
        within = (self.cells.lows >= low) & (self.cells.highs <= high)
        value = float(self.counts[self.cells.nodes[~within]].sum()) / total
        (estimate,), (std,) = self._linear((~within - value)[None].astype(float))
        wider = float(norm.isf(0.025 / len(within) ** 2)) / TWO_SIDED
        return interval(value, value + estimate / total, wider * std / total, 0.0, 1.0)

    def _quantile(
        self, probability: float, total: float, limits: tuple[float, float]
    ) -> IntervalEstimate:
        """Returns the quantile at `probability` of the `total` numbers, clipped to `limits`.

        The interval joins all cells that may contain the quantile: by bounds of 97.5 % each, the
        fraction of numbers below the left end of such a cell may be at most `probability`, and the
        fraction below its right end at least `probability`.
        """
        upto = np.tri(len(self.cells.nodes) + 1, len(self.cells.nodes), -1) - probability
        excess, stds = self._linear(upto)
        margin = TWO_SIDED * stds + 1e-9 * total
        possible = np.flatnonzero(((excess - margin)[:-1] <= 0.0) & ((excess + margin)[1:] >= 0.0))
        value, cell = self._at(probability * total)
        first, last = min(possible.min(initial=cell), cell), max(possible.max(initial=cell), cell)
        ends = value, float(self.cells.lows[first]), float(self.cells.highs[last])
        value, low, high = (without_last_bits(min(max(end, limits[0]), limits[1])) for end in ends)
        return IntervalEstimate(value=value, low=low, high=high)

    def _at(self, position: float) -> tuple[float, int]:
        """Returns the number at rank `position` (from 0 to the sum of counts), and its cell's
        index.

        Numbers are taken to be uniformly spread within a cell.
        """
        counts = self.counts[self.cells.nodes]
        ends = np.cumsum(counts)
        cell = min(int(np.searchsorted(ends, position)), len(counts) - 1)
        low, high = _finite(self.cells.lows[cell], self.cells.highs[cell])
        part = (position - (ends[cell] - counts[cell])) / counts[cell] if counts[cell] else 0.0
        return low + min(max(part, 0.0), 1.0) * (high - low), cell

    def _moments(self, limits: tuple[float, float]) -> tuple[IntervalEstimate, IntervalEstimate]:
        """Returns mean and standard deviation of the numbers clipped to `limits`, with 95 %
        intervals.

        Both intervals follow from sums of the smallest and largest values that the cells allow. The
        interval of the standard deviation also covers the uncertainty of the mean.
        """
        counts = self.counts[self.cells.nodes]
        total, lows = counts.sum(), self.cells.lows.clip(*limits)
        highs = self.cells.highs.clip(*limits)
        middles = (lows + highs) / 2.0
        mean = float(counts @ middles / total)
        ends, stds = self._linear(np.stack([lows - mean, highs - mean]))
        low, high = _ends(mean + ends / total, stds / total)
        estimate = IntervalEstimate(
            value=mean,
            low=min(max(low, limits[0]), mean),
            high=max(min(high, limits[1]), mean),
        )
        nearest = np.maximum(np.maximum(lows - mean, mean - highs), 0.0) ** 2
        farthest = np.maximum(np.abs(lows - mean), np.abs(highs - mean)) ** 2
        ends, stds = self._linear(np.stack([nearest, farthest]))
        least, most = _ends(ends / total, stds / total)
        off = max(mean - low, high - mean)
        width = limits[1] - limits[0]
        spread = math.sqrt(float(counts @ (middles - mean) ** 2 / total))
        return estimate, IntervalEstimate(
            value=spread,
            low=min(math.sqrt(max(least - off**2, 0.0)), spread),
            high=max(min(math.sqrt(max(most, 0.0)), width), spread),
        )


def visible_range(cells: Cells, measured: Reals, stds: Reals) -> tuple[float, float] | None:
    """Returns the range of the numbers that are visible through the noise.

    A node of the tree is visible if its noised count exceeds both 0.5 and the threshold that noise
    alone exceeds in any node with probability at most `_SEEN`. The range covers all visible nodes;
    within a node that has visible descendants, it covers these instead. The outermost cells are
    unbounded, so the range ends at their inner ends.

    Args:
      cells: the cells.
      measured: noised counts of the nodes, shape `[n]`.
      stds: their standard deviations, shape `[n]`.

    Returns:
      The smallest and largest value; None if no node is visible.
    """
    numbers = ~np.isnan(cells.below)
    threshold = float(norm.isf(_SEEN / max(int(numbers.sum()), 1)))
    above_noise = numbers & (measured > np.maximum(threshold * stds, 0.5))
    below = np.where(above_noise, cells.below, np.inf)
    above = np.where(above_noise, cells.above, -np.inf)
    for nodes, first, parents in reversed(cells.tree.families):
        low = np.minimum.reduceat(below[nodes], first)
        high = np.maximum.reduceat(above[nodes], first)
        known = np.isfinite(low)
        below[parents] = np.where(known, low, below[parents])
        above[parents] = np.where(known, high, above[parents])
    if not above_noise.any():
        return None
    top = cells.tree.depths == 0
    ends = float(cells.lows[1]), float(cells.highs[-2])
    first, last = float(below[top].min()), float(above[top].max())
    return without_last_bits(max(first, ends[0])), without_last_bits(min(last, ends[1]))


def interval(
    value: float, estimate: float, std: float, least: float, most: float = math.inf
) -> IntervalEstimate:
    """Returns `value` with a 95 % interval around an unbiased estimate, widened to contain `value`.

    Args:
      value: the value to state, for example the estimate made non-negative.
      estimate: the unbiased estimate.
      std: standard deviation of `estimate`.
      least: lower bound of value and interval.
      most: upper bound of value and interval.
    """
    low, high = estimate - TWO_SIDED * std, estimate + TWO_SIDED * std
    low, high = (float(np.clip(end, least, most)) for end in (min(low, value), max(high, value)))
    return IntervalEstimate(value=float(np.clip(value, least, most)), low=low, high=high)


def without_last_bits(value: float) -> float:
    """Returns `value` rounded to 12 significant digits.

    Some cells begin at the next float after another cell's end; rounding removes that difference.
    """
    return float(f"{value:.12g}")


def _ends(estimates: Reals, stds: Reals) -> tuple[float, float]:
    return (
        float(estimates[0] - TWO_SIDED * stds[0]),
        float(estimates[1] + TWO_SIDED * stds[1]),
    )


def _bound(end: float) -> float | None:
    return without_last_bits(float(end)) if math.isfinite(end) else None


def _finite(low: float, high: float) -> Sequence[float]:
    """Returns the ends of a cell; an infinite end is replaced by the finite one."""
    if math.isinf(low):
        return high, high
    return low, low if math.isinf(high) else high
