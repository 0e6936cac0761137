"""What a noised sum says of a measure: an estimate, and an interval that the noise is part of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Estimate:
    """A measure's estimate `value`, and the interval from `low` to `high`, in its units."""

    value: float
    low: float
    high: float

    @classmethod
    def within(cls, value: float, low: float, high: float, bounds: tuple[float, float]) -> Estimate:
        """The estimate cut to `bounds`, its value to the interval."""
        least, most = bounds
        low, high = min(max(low, least), most), min(max(high, least), most)
        return cls(min(max(value, low), high), low, high)


@dataclass(frozen=True)
class NoisedSum:
    """The sum over clients of their parts of one measure, with noise, in units of a client.

    `values` `[k]` add up parts, each with noise of the `deviation`, and `count` the share of each
    client's examples that the measure counts, with noise of `count_deviation` (NaN both, where the
    measure takes no count). `rate` is the probability by which a client took part: at 1 those who
    did are all that the estimate is about; below, they stand for the others; at 0 they are a sample
    of many more. `quantile` is that of the standard normal, two-sided, for the interval.
    """

    values: Tensor
    deviation: float
    count: float
    count_deviation: float
    rate: float
    quantile: float

    @property
    def unsampled(self) -> float:
        """1 - rate: the part of the clients' spread that the draw of the cohort puts in a sum.

        Under Poisson sampling the Horvitz-Thompson estimate sum_C t_u of q sum_u t_u has a
        variance of q (1 - q) sum_u t_u^2, which (1 - q) sum_C t_u^2 estimates without bias
        (Särndal, Swensson and Wretman 1992, section 3.2).
        """
        return 1.0 - self.rate
