"""Measures that are the mean over clients of one bounded number per example.

Their intervals are those of a ratio of two noised numbers y and x (Fieller 1954). A ratio r is in
the interval if |y - r x| is at most a normal quantile times the standard deviation of y - r x.
Unlike an interval by the delta method, this one is also valid if x may be 0: then every ratio is
possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from privfed.core.deferred import Tensor, torch
from privfed.metrics.measure import Estimate, Measure, NoisedSum, Scoring, with_slack


@dataclass(frozen=True)
class Variances:
    """The variances of a numerator y and a denominator x, and their covariance."""

    y: float
    x: float
    covariance: float = 0.0


Interval = tuple[float, float]
EVERY: Interval = (-math.inf, math.inf)
"""The interval that contains every number."""


def ratio_interval(y: float, x: float, variances: Variances, quantile: float) -> Interval | None:
    """Returns the interval of all r with (y - r x)^2 <= quantile^2 Var[y - r x].

    The denominator without noise is known to be positive.

    Args:
      y: noised numerator.
      x: noised denominator.
      variances: variances and covariance of y and x.
      quantile: two-sided quantile of the standard normal.

    Returns:
      The interval; `EVERY`, from -inf to inf, if x is at most `quantile` times its standard
      deviation, negative x included; None if no r satisfies the inequality.
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
    """Returns the smallest interval that contains all `intervals` except None.

    If there is none, returns `EVERY`, from -inf to inf.
    """
    ends = [interval for interval in intervals if interval is not None]
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else EVERY


class MeanMeasure(Measure):
    """The base of measures that are a mean of one number per client within public bounds.

    An example's value is clipped to the bounds and scaled to [-1, 1]. A client with mean v of its
    scaled values sends (v, 1 - v^2) (`with_slack`).
    """

    def bounds(self, scoring: Scoring) -> tuple[float, float]:
        """Returns the public bounds, low and high, to which each example's value is clipped."""
        raise NotImplementedError

    def values(self, outputs: Tensor, y: Tensor, scoring: Scoring) -> Tensor:
        """Returns each example's value, not yet clipped, shape `[n]`; NaN counts as the worst."""
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
        """Returns V / S = sum s v / sum s in the measure's units, and its interval.

        Sums are over clients: s is the fraction of a client's examples that are counted, and v the
        mean of their scaled values. The interval contains every ratio r for which (V - r S)^2 is at
        most quantile^2 times the variance of V - r S: the noise variance, std^2 + r^2 count_std^2,
        plus the variance from client sampling. The interval is never narrower than the one for the
        noise alone.
        """
        total, slack = noised.values.tolist()
        noise = Variances(noised.std**2, noised.count_std**2)
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
    """Returns the variances of V and S, including the variance from client sampling.

    V, S, s and v are those of `MeanMeasure.estimate`. Sampling adds (1 - rate) sum s^2 (v - r)^2 to
    the variance of V - r S. That term is at most the same expression with s in place of s^2, with
    equality if each client's examples lie in one group. The bound has two estimates at the value
    `ratio` of r, with G = sum s (1 - v^2), noised: `slack`. The first, S (1 + r^2) - 2 r
    V - G, includes the noise of V. The second, S (1 - r^2) - G, is that of a score interval (Wilson
    1927); its own variance grows with the differences between clients. Both estimates agree at r =
    V / S. The result is their average, in which the first has as weight the fraction of the
    variance of V that sampling causes. Half a standard deviation of the estimate's noise is added
    because the estimate is uncertain. Simulated coverage is then at least 0.945 at nominal 0.95,
    except for 0.935 if 50 clients of one example each are sampled and 7 of them err.
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
