"""The coordinate-wise trimmed mean."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from defenses.weighing import WeightRule


class TrimmedMean(WeightRule):
    """The mean of each coordinate without its f smallest and f largest values.

    F(x)_j = (1/(n - 2f)) sum of x_(f+1)j … x_(n-f)j, in order of size.

    Needs rows. Tolerates fewer than half Byzantine clients; robustness kappa = 6 r (1 + r) with r =
    f / (n - 2f) (Allouah et al. 2023, table 1). O(nd log n).

    Source: Yin, Chen, Ramchandran & Bartlett 2018, algorithm 1, option II.

    >>> import torch
    >>> TrimmedMean()(torch.tensor([[1.0], [2.0], [6.0], [-40.0], [1e9]]), byzantine=1)
    tensor([3.])
    """

    geometric: ClassVar[bool] = False

    def kappa(self, n: int, byzantine: int) -> float:
        ratio = byzantine / (n - 2 * byzantine)
        return 6 * ratio * (1 + ratio)

    def columns(self, ordered: Tensor, byzantine: int) -> Tensor:
        n = ordered.shape[1]
        return ordered[:, byzantine : n - byzantine].mean(dim=1)
