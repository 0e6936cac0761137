"""The mean around the coordinate-wise median."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from defenses.weighing import WeightRule


class MeanAroundMedian(WeightRule):
    """The mean of the n - f values of each coordinate nearest to its median.

    F(x)_j = (1/(n - f)) sum of the n - f values x_kj with the least |x_kj - median_j|; of two
    equally near values, the lower.

    Needs rows. Tolerates fewer than half Byzantine clients; no published kappa. O(nd (log n + f)).

    Source: Xie, Koyejo & Gupta 2018, "Generalized byzantine-tolerant SGD".

    >>> import torch
    >>> MeanAroundMedian()(torch.tensor([[1.0], [2.0], [3.0], [8.0]]), byzantine=1)
    tensor([2.])
    """

    geometric: ClassVar[bool] = False

    def columns(self, ordered: Tensor, byzantine: int) -> Tensor:
        return mean_nearest(ordered, ordered.shape[1] - byzantine)


def mean_nearest(ordered: Tensor, count: int) -> Tensor:
    """Returns the mean of the `count` values nearest to the median, for each row of `ordered` `[c,
    n]`, ascending.

    In ascending order these values form a window. The window starts after every value that is
    farther below the median than the value `count` later is above it. As the window moves up, the
    first distance decreases and the second increases, so counting such values locates the window,
    including with duplicate values. Of two equally near values, the lower is taken.
    """
    n = ordered.shape[1]
    median = (ordered[:, n // 2] / 2 + ordered[:, (n - 1) // 2] / 2)[:, None]
    passed_over = median - ordered[:, : n - count] > ordered[:, count:] - median
    first = passed_over.sum(dim=1)
    places = torch.arange(n, device=ordered.device)
    inside = (places >= first[:, None]) & (places < first[:, None] + count)
    return torch.where(inside, ordered, 0.0).sum(dim=1) / count
