"""Centered clipping: clips the difference between each update and a center, the last aggregate."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from defenses.by_sums.norm_bound import WithinRadius


class CenteredClipping(WithinRadius):
    """Clips each update's difference from the last aggregate.

    v <- v + (1/n) sum of (x_k - v) min(1, radius / |x_k - v|), repeated `passes` times (one pass
    suffices once the center has converged over rounds). v starts as the previous round's aggregate,
    or as 0 in the first round. Needs only sums; O(nd) per pass. Each of f Byzantine clients moves v
    by at most radius / n per pass, whatever it sends. The published guarantee holds for fewer than
    n / 10 Byzantine clients (theorem III) that send momentum vectors, whereas here clients send
    local-training updates. Without momentum, neither robustness over rounds nor a kappa is claimed;
    a kappa would depend on the distance of the center from the honest mean.

    *Sensitivity of the terms*, v a released value: radius under add/remove; twice that under
    replace-one. Under privacy the radius is privacy.clip.

    Source: Karimireddy, He & Jaggi 2021, "Learning from history for byzantine robust optimization".

    >>> import torch
    >>> rows = torch.tensor([[1.0, 2.0], [1.0, 4.0], [1e9, 3.0]])
    >>> CenteredClipping(radius=1.0).on_rows(rows, center=torch.tensor([1.0, 3.0]))
    tensor([1.3333, 3.0000])
    """

    passes: int = Field(1, ge=1, le=100)
    """Number of passes; each moves the center once and needs one sum."""
    remembers: ClassVar[bool] = True

    def step(self, center: Tensor, released: Tensor) -> Tensor:
        return center + released
