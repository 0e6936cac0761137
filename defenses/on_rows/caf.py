"""Covariance-bound agnostic filter (CAF): lowers weights along the largest variance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from defenses.geometry import Geometry
from defenses.weighing import WeightRule


class CovarianceFilter(WeightRule):
    """The weighted mean under those of the filter's weights with the smallest covariance (CAF).

    All weights c_k start at 1. With m and S the mean and covariance under weights c, v the leading
    eigenvector of S, and t_k = <x_k - m, v>^2,

    c_k <- c_k (1 - t_k / max t),   as long as the c sum to more than n - 2 f,

    and F(x) is the m whose S had the least leading eigenvalue. The maximum is taken over rows with
    positive weight, so that each pass removes one row completely. (Over all rows, an outlier that
    is already removed would stall the filter.)

    Needs rows. Tolerates fewer than half Byzantine clients. The constant kappa is that of
    `CovarianceFilter.kappa`; it also holds with the variance in one direction (the leading
    eigenvalue of the covariance of the honest rows) in place of its trace. One Gram matrix and at
    most n decompositions: O(n^2 d + n^4); the d x d covariance is never formed.

    Source: Allouah, Guerraoui & Stephan 2025, "Towards trustworthy federated learning with
    untrusted participants", algorithm 2.

    >>> import torch
    >>> rows = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [40.0, -50.0]])
    >>> CovarianceFilter()(rows, byzantine=1).round(decimals=2)
    tensor([0.5000, 0.5000])
    """

    def kappa(self, n: int, byzantine: int) -> float:
        """Returns (f / (n - 2 f)) (sqrt(2 K) + sqrt(K + 1))^2, K = 2 (n - f) / (n - 2 f).

        The paper proves O(f / n); this constant is proved as follows. L is the leading eigenvalue
        of the honest rows' covariance, and s and r are the weights that honest and Byzantine rows
        have lost. (1) While s <= r and the leading eigenvalue of S is above K L, honest rows
        contribute less than half of the sum of c_k t_k, so they lose less weight than Byzantine
        rows do. As Byzantine rows can lose at most f, some c of sum above n - 2 f has a leading
        eigenvalue of at most K L. (2) If weights are bounded by others, with a ratio g of their
        sums, the two means differ by at most sqrt((1 - g) / g) standard deviations of the larger
        weights. At the first c of (1), this bounds the distance from its m to the mean of its
        honest rows, from there to the mean of all honest rows, and from m to the F of later,
        smaller weights.
        """
        least = n - 2 * byzantine
        bound = 2 * (n - byzantine) / least
        return byzantine / least * (math.sqrt(2 * bound) + math.sqrt(bound + 1)) ** 2

    def mix(self, geometry: Geometry, byzantine: int) -> Tensor:
        return filtered(geometry, byzantine)


def filtered(geometry: Geometry, byzantine: int) -> Tensor:
    """Returns the filter's weights `[n]` float64, which sum to one, for rows with this geometry."""
    n = geometry.rows
    weights = geometry.gram.new_ones(n)
    best, least = weights, math.inf
    while True:
        largest, scores = _along_leading(geometry, weights / weights.sum())
        if largest < least:
            best, least = weights, largest
        highest = scores[weights > 0].max()
        weights = weights * (1 - scores / highest).clamp(min=0.0)
        if not highest > 0 or not float(weights.sum()) > n - 2 * byzantine:
            return best / best.sum()


def _along_leading(geometry: Geometry, weights: Tensor) -> tuple[float, Tensor]:
    """Returns the leading eigenvalue of the rows' covariance, and squared projections on its
    eigenvector.

    The covariance is that under `weights` `[n]`. The projections `[n]` are the t of all rows up to
    a common factor.
    """
    about, root = geometry.about_mean(weights), weights.sqrt()
    values, vectors = torch.linalg.eigh(root[:, None] * about * root[None, :])
    return float(values[-1]), (about @ (root * vectors[:, -1])).square()
