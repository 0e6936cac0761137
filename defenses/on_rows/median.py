"""The coordinate-wise median."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from defenses.weighing import WeightRule


class Median(WeightRule):
    """The coordinate-wise median.

    F(x)_j = median of x_1j … x_nj; for even n, the mean of the middle two.

    Needs rows. Tolerates fewer than half Byzantine clients; robustness kappa = 4 (1 + f / (n -
    2f))^2 (Allouah et al. 2023, table 1). O(nd log n).

    Source: Yin, Chen, Ramchandran & Bartlett 2018, algorithm 1, option I.

    >>> import torch
    >>> Median()(torch.tensor([[1.0, 5.0], [2.0, 6.0], [1e30, float("nan")]]), byzantine=1)
    tensor([1.5000, 5.5000])
    """

    geometric: ClassVar[bool] = False

    def kappa(self, n: int, byzantine: int) -> float:
        return 4 * (1 + byzantine / (n - 2 * byzantine)) ** 2

    def columns(self, ordered: Tensor, byzantine: int) -> Tensor:
        n = ordered.shape[1]
        return ordered[:, n // 2] / 2 + ordered[:, (n - 1) // 2] / 2
