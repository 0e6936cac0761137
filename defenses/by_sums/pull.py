"""The one primitive of robustness by sums: how far each row pulls a released center, at most."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_CHUNK = 8192


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
    away[~norms.isfinite().squeeze(1)] = 0.0  # not 0 times infinity
    return away, part


def mean_pull(rows: Tensor, center: Tensor, radius: float) -> Tensor:
    """The average `[d]` of the ways that `pull` gives for all `rows` `[n, d]`, which lie together.

    They are weights b_k / n on the differences x_k - v, formed twice, chunk by chunk: for their
    norms, and for one product. To multiply the rows instead and subtract v afterwards would lose as
    many digits as |v| has more than the differences. About v = 0 the rows are read as they are.
    """
    squares = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for away in _differences(rows, center):
        squares += torch.linalg.vector_norm(away, dim=1).double().square()
    finite = squares.to(rows.dtype).isfinite()  # as where a whole row is summed
    part = torch.where(finite, (radius / squares.sqrt()).clamp(max=1.0), 0.0)
    weights = (part / len(rows)).to(rows.dtype)
    keep = None if bool(finite.all()) else finite.nonzero().squeeze(1)
    weights = weights if keep is None else weights[keep]
    return torch.cat([weights @ away for away in _differences(rows, center, keep)])


def _differences(rows: Tensor, center: Tensor, keep: Tensor | None = None) -> Iterator[Tensor]:
    """`rows[keep] - center`, some columns at a time."""
    if keep is None and not bool(center.any()):
        yield rows
        return
    for start in range(0, rows.shape[1], _CHUNK):
        chunk = rows[:, start : start + _CHUNK]
        chunk = chunk if keep is None else chunk[keep]
        yield chunk - center[start : start + _CHUNK]
