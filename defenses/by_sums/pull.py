"""The common primitive of robust rules by sums: the clipped difference of each row from a
center.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from defenses.columns import product

_BATCH_SIZE = 8
"""Number of rows in a block on a GPU, whose differences from the center are in memory together."""


def pull(rows: Tensor, center: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """Clips each row's difference from `center` to `radius` and returns the clipping factors.

    No clipped difference is longer than `radius` (up to rounding) and no factor exceeds 1, so one
    client changes the sum by at most `radius`, whatever its row is. The averages S of clip(x_k - v)
    and B of b_k suffice for norm bounding (v = 0, the next center is S), centered clipping (v + S)
    and the geometric median (v + S / B).

    Args:
      rows: client updates x_k, shape [c, d].
      center: center v, shape [d].
      radius: norm to which differences are clipped, positive.

    Returns:
      clip(x_k - v) = b_k (x_k - v), shape [c, d], and the factors b_k = min(1, radius / |x_k - v|),
      shape [c, 1]. Both are zero for rows whose norm is not finite.
    """
    away = rows - center
    norms = torch.linalg.vector_norm(away, dim=1, keepdim=True)
    part = (radius / norms).clamp(max=1.0).nan_to_num(nan=1.0)  # 0 / 0 for a row at the center
    part = torch.where(norms.isfinite(), part, 0.0)
    away *= part
    away.masked_fill_(~norms.isfinite(), 0.0)  # since 0 times infinity is NaN
    return away, part


def mean_pull(rows: Tensor, center: Tensor, radius: float) -> Tensor:
    """Returns the mean `[d]` over all `rows` `[n, d]` of the clipped differences that `pull`
    returns.

    No second tensor of the size of `rows` is allocated. If the center is zero, norms are computed
    first and rows are then summed by one weighted product. Otherwise each row's difference is
    computed, clipped and accumulated in one pass. Weighting the rows themselves and subtracting the
    center afterwards would lose precision in proportion to |center| over the length of the
    differences.
    """
    rows = rows.detach()
    if not bool(center.any()):
        norms = torch.linalg.vector_norm(rows, dim=1)
        weights = radius / norms.clamp(min=radius) / len(rows)
        keep = None if bool(norms.isfinite().all()) else norms.isfinite().nonzero().squeeze(1)
        return product(weights[None] if keep is None else weights[None, keep], rows, keep)[0]
    if rows.device.type != "cpu":
        return mean_of_blocks(rows, center, radius)
    ways, away = torch.zeros_like(center), torch.empty_like(center)
    for row in rows:
        torch.sub(row, center, out=away)
        norm = float(torch.linalg.vector_norm(away))
        if math.isfinite(norm):
            ways.add_(away, alpha=radius / max(norm, radius))
    return ways / len(rows)


def mean_of_blocks(rows: Tensor, center: Tensor, radius: float) -> Tensor:
    """Computes `mean_pull` for rows on a GPU, a block of rows at a time and without
    synchronisation.
    """
    ways = (pull(block, center, radius)[0].sum(0) for block in torch.split(rows, _BATCH_SIZE))
    return sum(ways, torch.zeros_like(center)) / len(rows)
