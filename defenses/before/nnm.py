"""Nearest-neighbour mixing (NNM): replaces every update by the mean of its nearest neighbours."""

from __future__ import annotations

from defenses.deferred import Tensor, torch
from defenses.geometry import Geometry
from defenses.weighing import PreAggregator


class NearestNeighbourMixing(PreAggregator):
    """Replaces each update by the mean of the n - f updates nearest to it, including itself (NNM).

    y_k = (1/(n - f)) sum of the n - f updates x_j with the least |x_j - x_k|.

    Needs rows. Tolerates fewer than half Byzantine clients. A rule of robustness kappa becomes one
    of robustness at most (8 f / (n - f)) (kappa + 1), which is of the optimal order. One Gram
    matrix, O(n^2 d).

    Source: Allouah, Farhadkhani, Guerraoui, Gupta, Pinot & Stephan 2023, "Fixing by mixing",
    algorithm 2.

    >>> import torch
    >>> from defenses.on_rows.median import Median
    >>> from defenses.weighing import Composed
    >>> rule = Composed(before=(NearestNeighbourMixing(),), rule=Median())
    >>> rule(torch.tensor([[0.0], [1.0], [5.0], [90.0]]), byzantine=1)
    tensor([2.])
    """

    def most(self, n: int) -> int:
        return max(0, (n - 1) // 2)

    def mix(self, geometry: Geometry, byzantine: int, generator: torch.Generator | None) -> Tensor:
        distances = geometry.distances()
        count = geometry.rows - byzantine
        nearest = distances.argsort(dim=1, stable=True)[:, :count]
        return torch.zeros_like(distances).scatter_(1, nearest, 1 / count)
