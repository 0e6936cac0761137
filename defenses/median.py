"""The coordinate-wise median (Yin, Chen, Ramchandran & Bartlett 2018, Algorithm 1, option I)."""

from __future__ import annotations

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor


class Median(BaseModel):
    """The coordinate-wise median.

    F(x)_j = median of x_1j … x_nj; of an even number, the mean of the middle two.

    Needs rows. Tolerates fewer than half of them hostile. Rows that are not finite are left out;
    with none left the aggregate is zero. O(nd log n).

    >>> import torch
    >>> Median()(torch.tensor([[1.0, 5.0], [2.0, 6.0], [1e30, float("nan")]]), byzantine=1)
    tensor([1.5000, 5.5000])
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    def __call__(self, rows: Tensor, byzantine: int) -> Tensor:
        finite = rows[rows.isfinite().all(dim=1)]
        if not len(finite):
            return torch.zeros_like(rows[0]) if len(rows) else rows.new_zeros(rows.shape[1])
        ordered = finite.sort(dim=0).values
        half = len(finite) // 2
        return ordered[half] / 2 + ordered[(len(finite) - 1) // 2] / 2
