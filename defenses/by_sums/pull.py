"""The one primitive of robustness by sums: how far each row pulls a released center, at most."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from defenses.columns import product

_AT_ONCE = 8
"""Rows whose ways from a center a GPU holds at once."""


def pull(rows: Tensor, center: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """Each row's way from `center`, clipped to `radius`, and what part of it that is.

    rows `[c, d]`, center `[d]`. Returns clip(x_k - v) = b_k (x_k - v) `[c, d]` and b_k `[c, 1]`,
    b_k = min(1, radius / |x_k - v|), both zero for rows whose norm is not finite.

    No way is longer than `radius` (up to rounding), and no part above 1: one client can change the
    sum of ways by `radius`, whatever its row is. Averages S of a_k clip(x_k - v) and B of a_k b_k
    are all that norm bounding (v = 0, move to S), centered clipping (move to v + S) and the
    geometric median (move to v + S/B) need.
    """
    away = rows - center
    norms = torch.linalg.vector_norm(away, dim=1, keepdim=True)
    part = (radius / norms).clamp(max=1.0).nan_to_num(nan=1.0)  # a row at the center: 0/0
    part = torch.where(norms.isfinite(), part, 0.0)
    away *= part
    away.masked_fill_(~norms.isfinite(), 0.0)  # not 0 times infinity
    return away, part


def mean_pull(rows: Tensor, center: Tensor, radius: float) -> Tensor:
    """The average `[d]` of the ways that `pull` gives for all `rows` `[n, d]`, which lie together.

    Nothing of their size is written. About zero they are measured, and multiplied once by weights;
    about another center each is subtracted, measured and added up while it is at hand. Weights on
    the rows themselves, with the center subtracted afterwards, would lose as many digits as the
    center is longer than the differences.
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
    """`mean_pull` of a few rows at once, on a GPU: to look at each norm is to wait for each."""
    ways = (pull(block, center, radius)[0].sum(0) for block in torch.split(rows, _AT_ONCE))
    return sum(ways, torch.zeros_like(center)) / len(rows)
