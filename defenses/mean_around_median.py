"""The mean around the coordinate-wise median."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from defenses.weighing import WeightRule


class MeanAroundMedian(WeightRule):
    """The mean of the n - f values of each coordinate that are nearest to its median.

    F(x)_j = (1/(n - f)) sum of the n - f values x_kj with the least |x_kj - median_j|.

    Needs rows. Tolerates fewer than half hostile; no published kappa. O(nd (log n + f)).

    Source: Xie, Koyejo & Gupta 2018, "Generalized byzantine-tolerant SGD".

    >>> import torch
    >>> MeanAroundMedian()(torch.tensor([[1.0], [2.0], [3.0], [8.0]]), byzantine=1)
    tensor([2.])
    """

    geometric: ClassVar[bool] = False

    def columns(self, ordered: Tensor, byzantine: int) -> Tensor:
        return mean_nearest(ordered, ordered.shape[1] - byzantine)


def mean_nearest(ordered: Tensor, count: int) -> Tensor:
    """The mean of the `count` values nearest to the median, for each row of `ordered` `[c, n]`.

    In ascending order they lie side by side: of the n - count + 1 windows it is the one whose
    farther end is nearest to the median; of two as near, the lower.
    """
    n = ordered.shape[1]
    median = (ordered[:, n // 2] / 2 + ordered[:, (n - 1) // 2] / 2)[:, None]
    below = median - ordered[:, : n - count + 1]
    above = ordered[:, count - 1 :] - median
    first = torch.maximum(below, above).argmin(dim=1)
    places = torch.arange(n, device=ordered.device)
    inside = (places >= first[:, None]) & (places < first[:, None] + count)
    return torch.where(inside, ordered, 0.0).sum(dim=1) / count
