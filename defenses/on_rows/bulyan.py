"""Bulyan: selects rows by Krum, then averages the values around their median."""

from __future__ import annotations

import torch
from torch import Tensor

from defenses.geometry import Geometry
from defenses.on_rows.krum import krum_scores
from defenses.on_rows.mean_around_median import mean_nearest
from defenses.weighing import WeightRule


class Bulyan(WeightRule):
    """Selects n - 2f updates by Krum, one at a time, and averages the values around their median.

    Each selection is the update with the least Krum score among the updates not yet selected.
    F(x)_j is the mean of the n - 4f values nearest to the median of the n - 2f selected.

    Needs rows. Tolerates f <= (n - 3) / 4 Byzantine clients; no published kappa. One Gram matrix
    and sorting, O(n^2 d + n^3 log n).

    Source: El Mhamdi, Guerraoui & Rouault 2018, "The hidden vulnerability of distributed learning
    in Byzantium", section 4.

    >>> import torch
    >>> rows = torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0], [1e6]])
    >>> Bulyan()(rows, byzantine=1)
    tensor([2.])
    """

    def most(self, n: int) -> int:
        return max(0, (n - 3) // 4)

    def mix(self, geometry: Geometry, byzantine: int) -> Tensor:
        distances, left = geometry.distances(), list(range(geometry.rows))
        picked: list[int] = []
        while len(picked) < geometry.rows - 2 * byzantine:
            among = distances[left][:, left]
            picked.append(left.pop(int(krum_scores(among, byzantine).argmin())))
        return torch.eye(geometry.rows, dtype=distances.dtype)[picked]

    def columns(self, ordered: Tensor, byzantine: int) -> Tensor:
        return mean_nearest(ordered, ordered.shape[1] - 2 * byzantine)
