"""Centered clipping: updates count by their way from a center, clipped."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from defenses.norm_bound import radius_within, required
from defenses.pull import pull
from defenses.types import SumRule


class CenteredClipping(SumRule):
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
    radius: float | None = Field(None, gt=0, le=1e15)
    remembers: ClassVar[bool] = True

    tolerance: ClassVar[str] = "any number, each by its radius at most"

    def most(self, n: int) -> int:
        return n

    def within(self, clip: float | None) -> CenteredClipping:
        return self.model_copy(update={"radius": radius_within(self.radius, clip)})

    def sensitivity(self, relation: str) -> float:
        return required(self.radius) * (2 if relation == "replace_one" else 1)

    def terms(self, rows: Tensor, center: Tensor) -> Tensor:
        return pull(rows, center, required(self.radius))[0]

    def unbounded(self, rows: Tensor, center: Tensor) -> Tensor:
        return rows - center

    def step(self, center: Tensor, released: Tensor) -> Tensor:
        return center + released
