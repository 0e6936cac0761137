"""A measure of federated evaluation: the expected calibration error.

It is the mean absolute difference between confidence and accuracy, in bins of confidence.
"""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field

from privfed.core.deferred import F, Tensor, torch
from privfed.metrics.accuracy import per_position
from privfed.metrics.measure import Estimate, Measure, NoisedSum, Scoring, with_slack

_STEPS = 2001
"""Number of grid points in [0, 1] that are tested for membership in an interval."""


class Calibration(Measure):
    """The expected calibration error (Naeini, Cooper and Hauskrecht 2015), in bins of confidence.

    Confidence is the probability of the predicted class; its bins have equal width from 1 / classes
    to 1. An example's gap is 1 - confidence if its prediction is right and -confidence otherwise.
    The example's vector has one entry per bin: the gap in the bin of its confidence, and 0 in all
    others. A sequence's vector is the mean over its labelled positions. The error is the sum over
    bins of the absolute summed gaps, divided by the count of examples. Clients also send the
    additional entry of `with_slack`.
    """

    lower_is_better: ClassVar[bool] = True
    bins: int = Field(10, ge=1)
    """Number of confidence bins."""

    def title(self, scoring: Scoring) -> str:
        return "calibration"

    def lacks(self, scoring: Scoring) -> str:
        several = scoring.form.classified and scoring.form.classes > 1
        return "" if several else "two or more classes"

    def columns(self, scoring: Scoring) -> int:
        return self.bins

    def vectors(self, outputs: Tensor, y: Tensor, scoring: Scoring) -> Tensor:
        """Returns a vector per example, with its gap in the bin of its confidence: `[n, bins]`.

        Non-finite outputs count as fully confident and wrong: gap -1.
        """
        expected = scoring.loss.expectation(outputs, scoring.form.meaning).double()
        confidence, prediction = expected.max(-1)
        least = 1 / scoring.form.classes
        valid = outputs.isfinite().all(-1) & expected.isfinite().all(-1)
        confidence = torch.where(valid, confidence, 1.0).clamp(least, 1)
        gap = ((prediction == y) & valid).double() - confidence
        cell = ((confidence - least) / (1 - least) * self.bins).long().clamp(max=self.bins - 1)
        cells = F.one_hot(cell, self.bins).double() * gap[..., None]
        columns = [per_position(column, y, scoring) for column in cells.unbind(-1)]
        return torch.stack(columns, 1)

    def parts(self, means: Tensor) -> Tensor:
        return with_slack(means)

    def estimate(self, noised: NoisedSum, scoring: Scoring) -> Estimate:
        """Returns the error sum_b |D_b| / S and its interval, corrected for the bias of noise.

        D_b is the noised sum of gaps in bin b, and S the noised count. Noise makes |D_b| too large
        on average: see `_estimated`. If S is at most `noised.quantile` of its standard deviations,
        the estimate is 0 with the interval [0, 1].
        """
        count = max(noised.count, 1.0)
        if noised.count <= noised.quantile * noised.count_std:
            return Estimate(0.0, 0.0, 1.0)
        gaps, slack = noised.values[: self.bins].double(), float(noised.values[self.bins])
        drawn = noised.unsampled * max(count - slack, 0.0)
        return _estimated(gaps, noised, count, drawn)


def _estimated(gaps: Tensor, noised: NoisedSum, count: float, drawn: float) -> Estimate:
    """Estimates the calibration error and its interval from noised sums of gaps.

    The absolute value |D + noise| exceeds |D| on average, and the more so the smaller D is. The
    estimate subtracts the noise variance from the squares, sqrt(max(D^2 - variance, 0)). The
    estimate is consistent, and at most about a quarter of a standard deviation too large per bin
    where D is 0. The interval inverts a test of T, the sum of the noised |D_b|. Let the sum of the
    true |D_b| be given. The mean of T is then smallest if all bins have equal |D_b|, and largest if
    one bin has the whole sum (the mean of a folded normal is convex in |D|). An error is rejected
    only if T is too small for the first case or too large for the second. The interval therefore
    holds for any distribution of the gaps over bins, and is wider than necessary.

    Args:
      gaps: noised sums of gaps per bin, shape `[bins]`.
      noised: the noised sum, of which only the standard deviations and the quantile are read.
      count: noised sum of the clients' fractions of counted examples, at least 1.
      drawn: variance that client sampling adds to the gaps, summed over bins.
    """
    bins, k = len(gaps), noised.quantile
    observed = float(gaps.abs().sum())
    total = torch.linspace(0, 1, _STEPS, dtype=torch.float64) * count
    apart = (noised.std**2 + drawn / bins) ** 0.5
    uncertain = drawn + (total * noised.count_std / count).square()
    even, even_variance = _folded(total / bins, noised.std)
    lone, lone_variance = _folded(total, apart)
    none, none_variance = _folded(torch.zeros_like(total), apart)
    least = bins * even - k * (bins * even_variance + uncertain).sqrt()
    most = lone + (bins - 1) * none
    most = most + k * (lone_variance + (bins - 1) * none_variance + uncertain).sqrt()
    step = count / (_STEPS - 1)
    possible = total[(least - step <= observed) & (observed <= most + step)]
    if not len(possible):  # T is too small even for an error of 0
        return Estimate(0.0, 0.0, 1 / (_STEPS - 1))
    value = float((gaps.square() - apart**2).clamp(min=0).sqrt().sum())
    low, high = float(possible[0]), float(possible[-1])
    return Estimate.within(value / count, low / count, high / count, (0.0, 1.0))


def _folded(mean: Tensor, std: float) -> tuple[Tensor, Tensor]:
    """Returns mean and variance of |X|, each `[n]`, for normal X with `mean` `[n]` and `std`.

    Source: Leone, Nelson and Nottingham 1961.
    """
    if std == 0:
        return mean.abs(), torch.zeros_like(mean)
    scaled = mean / std
    peak = math.sqrt(2 / math.pi) * (-scaled.square() / 2).exp()
    folded = std * (peak + scaled * (scaled / math.sqrt(2)).erf())
    return folded, (mean.square() + std**2 - folded.square()).clamp(min=0)
