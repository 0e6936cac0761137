"""Measures that are the mean, over clients, of one bounded number per example."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from privfed.deferred import torch
from privfed.measures.estimate import Estimate, NoisedSum
from privfed.measures.measure import Measure
from privfed.measures.ratio import Variances, ratio_interval, widest
from privfed.measures.scoring import Scoring

if TYPE_CHECKING:
    from torch import Tensor


class MeanMeasure(Measure):
    """The base of measures that are a mean: each client's is one number in public bounds.

    An example says v in [-1, 1], its value scaled by the bounds. Of a client's mean v the part
    (v, 1 - v^2) is sent, whose norm is sqrt(1 - v^2 + v^4) <= 1: the second number, by which the
    server learns how much clients differ, adds nothing to the sensitivity.
    """

    def bounds(self, scoring: Scoring) -> tuple[float, float]:
        """The least and the largest value, public constants: values beyond are cut to them."""
        raise NotImplementedError

    def values(self, outputs: Tensor, y: Tensor, scoring: Scoring) -> Tensor:
        """Each example's value `[n]`; NaN counts as the worst."""
        raise NotImplementedError

    def columns(self, scoring: Scoring) -> int:
        return 1

    def vectors(self, outputs: Tensor, y: Tensor, scoring: Scoring) -> Tensor:
        low, high = self.bounds(scoring)
        values = self.values(outputs, y, scoring).double()
        scaled = (2 * (values - low) / (high - low) - 1).clamp(-1, 1)
        worst = 1.0 if self.lower_is_better else -1.0
        return torch.where(scaled.isnan(), worst, scaled)[:, None]

    def parts(self, means: Tensor) -> Tensor:
        return torch.cat([means, 1 - means.square()], 1)

    def estimate(self, noised: NoisedSum, scoring: Scoring) -> Estimate:
        """V / S = sum s v / sum s, for clients' shares s of examples that count.

        The interval holds every ratio r with (V - r S)^2 at most k = quantile^2 times its variance
        at r. The noise has deviation^2 + r^2 count_deviation^2 of it. The draw of clients has (1 -
        rate) sum s^2 (v - r)^2, at most the same with s for s^2 (equal, where a client's examples
        are all in one group), which is S (1 - r^2) - G at r, G = sum s (1 - v^2) the slack: a score
        interval (Wilson 1927), quadratic in r. G is noised too, so that the spread is taken half a
        deviation of its noise larger, and never below 0; in simulations (`tests/privfed/measures`)
        the coverage is then at least nominal down to cohorts of 50.
        """
        total, slack = noised.values.tolist()
        count, noise = noised.count, Variances(noised.deviation**2, noised.count_deviation**2)
        ratio = min(max(total / max(count, 1.0), -1.0), 1.0)
        unsure = math.hypot(noised.deviation, (1 - ratio * ratio) * noised.count_deviation)
        spread = noised.unsampled * (count - slack + unsure / 2)
        drawn = Variances(noise.y + spread, noise.x - noised.unsampled * count)
        intervals = [
            ratio_interval(total, count, variances, noised.quantile) for variances in (noise, drawn)
        ]
        low, high = self.bounds(scoring)
        least, most = widest(intervals)
        value, least, most = (low + (v + 1) / 2 * (high - low) for v in (ratio, least, most))
        return Estimate.within(value, least, most, (low, high))
