"""A measure of federated evaluation: the area under the ROC curve, from histograms of scores."""

from __future__ import annotations

from pydantic import Field

from privfed.core.deferred import Tensor, torch
from privfed.metrics.mean_measure import EVERY, Variances, ratio_interval
from privfed.metrics.measure import Count, Estimate, Measure, NoisedSum, Scoring


def haar(levels: int) -> Tensor:
    """Returns the Haar wavelet matrix for n cells.

    The first row of the matrix computes the sum of all cells, and every other row the difference
    between the two halves of a dyadic range of cells. Rows are orthogonal, and every column has
    levels + 1 entries that are 1 or -1; its other entries are 0. If noise is added to each of n
    cells, the sum of the first k cells has up to n times the noise variance of a cell. If noise is
    added to the wavelet coefficients instead, the factor is of order log n, times levels + 1 for
    the larger norm of the columns (Xiao, Wang and Gehrke 2011).

    Args:
      levels: base-2 logarithm of the number of cells n.

    Returns:
      The matrix, shape `[n, n]`, float64.
    """
    matrix = torch.ones(1, 1, dtype=torch.float64)
    pair = torch.ones(1, 2, dtype=torch.float64)
    halves = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    for level in range(levels):
        finest = torch.kron(torch.eye(2**level, dtype=torch.float64), halves)
        matrix = torch.cat([torch.kron(matrix, pair), finest])
    return matrix


def inverse_haar(levels: int) -> Tensor:
    """Returns the inverse of `haar(levels)`, shape `[n, n]`."""
    matrix = haar(levels)
    return matrix.T / matrix.square().sum(1)


class AreaUnderCurve(Measure):
    """The area under the ROC curve of two classes, from a histogram of scores per class.

    An example's score is its predicted probability of class 1, which puts it into one of the
    2^levels cells of the histogram of its own class. The example's vector has the Haar wavelet
    coefficients of that cell: levels + 1 entries of size 1 / sqrt(levels + 1), so the norm is 1.
    Cells have equal width in sqrt(odds) / (1 + sqrt(odds)), where odds are those of class 1; this
    scale resolves confident scores better than probabilities do. Two scores in one cell count as a
    tie and contribute one half. All clients that hold examples have the same total weight.

    The noised histograms are unbiased and their noises independent, so their product is unbiased
    too. The area is the ratio of that product to the product of the histograms' sums, and is biased
    only by the noise on these sums.
    """

    levels: int = Field(5, ge=1, le=10)
    """Base-2 logarithm of the number of cells in each histogram."""

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
        """Returns the wavelet coefficients of each example's cell, shape `[n, 2 * 2^levels]`.

        The first half of a vector is for an example of class 0, the second for one of class 1; the
        other half is zero. A non-finite score counts as the worst score for its example's class.
        """
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
        """Returns the area sum_ij p_i n_j K_ij / (P N) and its interval.

        p and n are the noised histograms of the positive and the negative class, with sums P and N;
        K_ij is 1 for j < i, 1/2 for j = i and else 0. If P or N is not positive, the estimate is
        0.5 with the interval [0, 1].

        The interval is Fieller's interval of that ratio r. With a = K n and b = K^T p, noise dp on
        p and dn on n moves the numerator minus r P N by (a - r N) dp + (b - r P) dn to first order.
        Client sampling adds at most the variance that it would add if each client's examples lay in
        one cell (Jensen). This bound is conservative if a client's examples lie in many cells.
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
            # noise of the wavelet coefficients, then sampling of clients with one cell each
            changes = torch.stack([gain, torch.full_like(gain, others)])
            noises = changes @ inverse * noised.std
            draws = changes * (_cleaned(histogram) * noised.unsampled).sqrt()
            spread = noises @ noises.T + draws @ draws.T
            for place, at in enumerate(((0, 0), (1, 1), (0, 1))):
                variances[place] += float(spread[at])
        interval = ratio_interval(area, pairs, Variances(*variances), noised.quantile)
        return Estimate.within(area / pairs, *(interval or EVERY), (0.0, 1.0))


def _cleaned(cells: Tensor) -> Tensor:
    """Sets negative entries of `cells` `[n]` to zero, and rescales the others to the former sum.

    Both the former sum and the sum of the positive entries count as at least 1.
    """
    positive = cells.clamp(min=0)
    return positive * cells.sum().clamp(min=1) / positive.sum().clamp(min=1)
