"""Centered clipping: updates count by their way from a center, clipped."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from defenses.by_sums.norm_bound import WithinRadius


class CenteredClipping(WithinRadius):
    """Updates clipped about the last aggregate.

    v <- v + (1/n) sum of (x_k - v) min(1, radius / |x_k - v|), `passes` times (one is enough once
    rounds have found the center); v starts as the aggregate of the round before, in the first
    round as 0. Sums suffice; O(nd) for a pass. Each of f hostile clients moves it by at most
    radius / n a pass, whatever it sends. Published for fewer than n / 10 hostile (theorem III), and
    with clients' own momentum, which updates of local training do not have: without it no
    robustness is claimed over rounds, nor a kappa, which depends on how near the center is.

    *Sensitivity of the terms*, v a released value: radius; twice that for replacing a client.
    Under privacy the radius is privacy.clip.

    Source: Karimireddy, He & Jaggi 2021, "Learning from history for byzantine robust optimization".

    >>> import torch
    >>> rows = torch.tensor([[1.0, 2.0], [1.0, 4.0], [1e9, 3.0]])
    >>> CenteredClipping(radius=1.0).on_rows(rows, center=torch.tensor([1.0, 3.0]))
    tensor([1.3333, 3.0000])
    """

    passes: int = Field(1, ge=1, le=100)
    """How often the center moves, by a sum each."""
    remembers: ClassVar[bool] = True

    def step(self, center: Tensor, released: Tensor) -> Tensor:
        return center + released
