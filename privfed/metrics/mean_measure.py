"""Measures that are the mean, over clients, of one bounded number per example.

The interval of a ratio of two noised numbers (Fieller 1954).

A ratio r = y / x of means is in the interval where y - r x is no further from 0 than its deviation
explains. Unlike the delta method this says so where x itself may be 0: every ratio is possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from privfed.core.deferred import Tensor, torch
from privfed.metrics.measure import Estimate, Measure, NoisedSum, Scoring, with_slack


@dataclass(frozen=True)
class Variances:
    """The variances of y and x, and their covariance."""

    y: float
    x: float
    covariance: float = 0.0


Interval = tuple[float, float]
EVERY: Interval = (-math.inf, math.inf)


def ratio_interval(y: float, x: float, variances: Variances, quantile: float) -> Interval | None:
    """All r with (y - r x)^2 <= quantile^2 Var[y - r x], for an x that is known to be positive.

    `EVERY` ratio, where x is no larger than its variance explains, and None where no ratio is.
    """
    k = quantile**2
    a = x * x - k * variances.x
    if x <= 0 or a <= 0:
        return EVERY
    middle = (x * y - k * variances.covariance) / a
    square = middle * middle - (y * y - k * variances.y) / a
    if square < -1e-12 * middle * middle:
        return None
    spread = math.sqrt(max(square, 0.0))
    return middle - spread, middle + spread


def widest(intervals: Iterable[Interval | None]) -> Interval:
    """From the least end of these intervals to the largest; `EVERY` number, where there is none."""
    ends = [interval for interval in intervals if interval is not None]
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else EVERY


class MeanMeasure(Measure):
    """The base of measures that are a mean: each client's is one number in public bounds.

    An example says v in [-1, 1], its value scaled by the bounds. Of a client's mean v the part
    (v, 1 - v^2) is sent (`with_slack`).
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
        return with_slack(means)

    def estimate(self, noised: NoisedSum, scoring: Scoring) -> Estimate:
        """V / S = sum s v / sum s, for clients' shares s of examples that count.

        The interval holds every ratio r with (V - r S)^2 at most quantile^2 times its variance at
        r: that of the noise, deviation^2 + r^2 count_deviation^2, and that of the draw of clients.
        It ends where the noise alone would have it end, or further out.
        """
        total, slack = noised.values.tolist()
        noise = Variances(noised.deviation**2, noised.count_deviation**2)
        ratio = min(max(total / max(noised.count, 1.0), -1.0), 1.0)
        intervals = [
            ratio_interval(total, noised.count, variances, noised.quantile)
            for variances in (noise, _with_draw(noise, noised, total, slack, ratio))
        ]
        low, high = self.bounds(scoring)
        least, most = widest(intervals)
        value, least, most = (low + (v + 1) / 2 * (high - low) for v in (ratio, least, most))
        return Estimate.within(value, least, most, (low, high))


def _with_draw(
    noise: Variances, noised: NoisedSum, total: float, slack: float, ratio: float
) -> Variances:
    """The variances of V and S with what the draw of clients adds to those of the noise.

    It adds (1 - rate) sum s^2 (v - r)^2 to the variance of V - r S, which is at most, and for
    clients of one group just, the same with s for s^2. Of that, two estimates at r are known, with
    G = sum s (1 - v^2): S (1 + r^2) - 2 r V - G, which the noise of V is in, and S (1 - r^2) - G,
    as in a score interval (Wilson 1927), which varies more as clients do. They agree at V / S. The
    first is taken by the share that the draw has in the variance of V, and half a deviation of its
    noise more, for being uncertain. The coverage in simulations is then 0.945 and more at 0.95, and
    0.935 where 50 clients of one example each are drawn and 7 of them err.
    """
    count, unsampled, square = noised.count, noised.unsampled, ratio * ratio
    drawn = unsampled * max(count * (1 - square) - slack, 0.0)
    share = drawn / (drawn + noise.y) if drawn else 0.0
    unsure = noise.y * (1 + 4 * share * share * square)
    unsure += noise.x * (1 - square + 2 * share * square) ** 2
    return Variances(
        noise.y + unsampled * (count - slack + math.sqrt(unsure) / 2),
        noise.x + unsampled * count * (2 * share - 1),
        unsampled * share * total,
    )
