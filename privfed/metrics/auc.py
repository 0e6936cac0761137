"""The area under the ROC curve, by histograms of scores."""

from __future__ import annotations

from pydantic import Field

from privfed.core.deferred import Tensor, torch
from privfed.metrics.mean_measure import EVERY, Variances, ratio_interval
from privfed.metrics.measure import Count, Estimate, Measure, NoisedSum, Scoring


def haar(levels: int) -> Tensor:
    """The matrix `[n, n]`, n = 2^levels, float64: the sum of all cells, and differences of halves.

    Rows are orthogonal, and every column has levels + 1 numbers of size 1. Of n noised cells, a sum
    of the first ones has a noise variance of up to n; of the n numbers that this matrix makes, of
    about log n, times levels + 1 for the longer columns (Xiao, Wang and Gehrke 2011).
    """
    matrix = torch.ones(1, 1, dtype=torch.float64)
    pair = torch.ones(1, 2, dtype=torch.float64)
    halves = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    for level in range(levels):
        finest = torch.kron(torch.eye(2**level, dtype=torch.float64), halves)
        matrix = torch.cat([torch.kron(matrix, pair), finest])
    return matrix


def inverse_haar(levels: int) -> Tensor:
    """The inverse of `haar`, `[n, n]`."""
    matrix = haar(levels)
    return matrix.T / matrix.square().sum(1)


class AreaUnderCurve(Measure):
    """The area under the ROC curve of two classes, by a histogram of scores of each.

    An example is one of 2^levels cells of its class's histogram, of which Haar's wavelets are sent:
    levels + 1 numbers of size 1 / sqrt(levels + 1), so that its norm is 1. Cells are of equal width
    in sqrt(odds) / (1 + sqrt(odds)), which resolves sure scores better than probabilities would.
    Two scores in one cell count as a tie, whose share of the area is put at one half.

    Noised histograms are unbiased, and so is the product of both, whose noises are independent. The
    area, their ratio to the product of their sums, is biased by what the noise on these explains.
    """

    levels: int = Field(5, ge=1, le=10)
    """Each histogram has 2^levels cells."""

    def title(self, scoring: Scoring) -> str:
        return "auc"

    def lacks(self, scoring: Scoring) -> str:
        form = scoring.form
        two = form.classified and form.classes == 2 and not form.labels
        return "" if two else "one of two classes per example (binary_cross_entropy)"

    def count(self, scoring: Scoring) -> Count:
        return Count.NONE

    def columns(self, scoring: Scoring) -> int:
        return 2 * int(2**self.levels)

    def vectors(self, outputs: Tensor, y: Tensor, scoring: Scoring) -> Tensor:
        """Wavelets of one cell; a score that is no number is the worst for its example's class."""
        probability = scoring.loss.expectation(outputs, scoring.form.meaning)[:, 1].double()
        valid = outputs.isfinite().all(-1) & probability.isfinite()
        probability = torch.where(valid, probability, (y == 0).double()).clamp(0, 1)
        root, other = probability.sqrt(), (1 - probability).sqrt()
        cells = self.columns(scoring) // 2
        cell = (root / (root + other) * cells).long().clamp(max=cells - 1)
        wavelets = haar(self.levels).T.to(y.device)[cell] / (self.levels + 1) ** 0.5
        positive = (y == 1)[:, None]
        return torch.cat([wavelets * ~positive, wavelets * positive], 1)

    def estimate(self, noised: NoisedSum, scoring: Scoring) -> Estimate:
        """sum_ij p_i n_j K_ij / (P N), K_ij = [j < i] + [j = i] / 2, of histograms p and n.

        Fieller's interval of that ratio: with a = K n and b = K' p, the noise moves it by
        (a - r N) dp + (b - r P) dn to first order, and the draw of clients by at most as much as if
        each were in one cell (Jensen), which is more than where clients' examples lie in many.
        """
        cells, longer = self.columns(scoring) // 2, (self.levels + 1) ** 0.5
        inverse = inverse_haar(self.levels) * longer
        negative, positive = noised.values.double().view(2, cells) @ inverse.T
        order = torch.ones(cells, cells, dtype=torch.float64).tril(-1)
        order += torch.eye(cells, dtype=torch.float64) / 2
        above, below = order @ negative, positive @ order
        negatives, positives = float(negative.sum()), float(positive.sum())
        if min(negatives, positives) <= 0:
            return Estimate(0.5, 0.0, 1.0)
        area, pairs = float(positive @ above), positives * negatives
        variances = [0.0, 0.0, 0.0]
        for histogram, gain, others in ((positive, above, negatives), (negative, below, positives)):
            # by the wavelets' noises, then by clients of one cell
            changes = torch.stack([gain, torch.full_like(gain, others)])
            noises = changes @ inverse * noised.deviation
            draws = changes * (_cleaned(histogram) * noised.unsampled).sqrt()
            spread = noises @ noises.T + draws @ draws.T
            for place, at in enumerate(((0, 0), (1, 1), (0, 1))):
                variances[place] += float(spread[at])
        interval = ratio_interval(area, pairs, Variances(*variances), noised.quantile)
        return Estimate.within(area / pairs, *(interval or EVERY), (0.0, 1.0))


def _cleaned(cells: Tensor) -> Tensor:
    """Cells `[n]` that are not negative, of the same sum, or of 1."""
    positive = cells.clamp(min=0)
    return positive * cells.sum().clamp(min=1) / positive.sum().clamp(min=1)
