"""Krum and Multi-Krum: select the updates with the nearest neighbours."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from defenses.geometry import Geometry
from defenses.weighing import WeightRule


class Krum(WeightRule):
    """Selects the update with the nearest neighbours.

    F(x) = the x_k with the least score, the sum of squared distances to the n - f - 2 other updates
    nearest to it; the first among equal scores.

    Needs rows. Tolerates f <= (n - 3) / 2 Byzantine clients; robustness kappa = 6 (1 + f / (n -
    2f)) (Allouah et al. 2023, table 1). One Gram matrix, O(n^2 d).

    Source: Blanchard, El Mhamdi, Guerraoui & Stainer 2017, section 4.

    >>> import torch
    >>> rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.2], [1.0, 1.0], [9.0, 9.0]])
    >>> Krum()(rows, byzantine=1)
    tensor([1., 0.])
    """

    def most(self, n: int) -> int:
        return max(0, (n - 3) // 2)

    def kappa(self, n: int, byzantine: int) -> float:
        return 6 * (1 + byzantine / (n - 2 * byzantine))

    def mix(self, geometry: Geometry, byzantine: int) -> Tensor:
        return _one_hot(krum_scores(geometry.distances(), byzantine).argmin(), geometry)


class MultiKrum(Krum):
    """The mean of the updates with the nearest neighbours.

    F(x) = the mean of the n - f updates with the least Krum scores.

    Needs rows. Tolerates f <= (n - 3) / 2 Byzantine clients. The robustness kappa = 6 (1 + f / (n -
    2f)) is published for Krum only. One Gram matrix, O(n^2 d).

    Source: Blanchard, El Mhamdi, Guerraoui & Stainer 2017 (with m = n - f).

    >>> import torch
    >>> rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [9.0, 9.0]])
    >>> MultiKrum()(rows, byzantine=1)
    tensor([0.5000, 0.5000])
    """

    def kappa(self, n: int, byzantine: int) -> float:
        return math.inf  # Krum's kappa is for one selected row

    def mix(self, geometry: Geometry, byzantine: int) -> Tensor:
        scores = krum_scores(geometry.distances(), byzantine)
        best = scores.argsort(stable=True)[: geometry.rows - byzantine]
        return _one_hot(best, geometry).sum(0) / len(best)


def krum_scores(distances: Tensor, byzantine: int) -> Tensor:
    """Returns each row's score `[n]`: the sum of its max(n - f - 2, 1) smallest squared distances
    to other rows.
    """
    others = distances.sort(dim=1).values[:, 1:]  # the first is the distance to itself, 0
    return others[:, : max(1, len(distances) - byzantine - 2)].sum(dim=1)


def _one_hot(places: Tensor, geometry: Geometry) -> Tensor:
    return torch.nn.functional.one_hot(places, geometry.rows).to(geometry.gram.dtype)
