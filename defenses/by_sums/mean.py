"""The mean: no defense, and the baseline for all other rules."""

from __future__ import annotations

import math
from typing import ClassVar

from defenses.deferred import Tensor, torch
from defenses.geometry import Geometry
from defenses.types import SumRule
from defenses.weighing import WeightRule


class Mean(SumRule, WeightRule):
    """The mean of all updates.

    F(x) = (1/n) sum of x_k, by one sum. Tolerates no Byzantine client; O(nd).

    >>> import torch
    >>> rows = torch.tensor([[0.0, 2.0], [4.0, 2.0]])
    >>> rule = Mean()
    >>> rule.step(torch.zeros(2), rule.terms(rows, torch.zeros(2)).mean(0))
    tensor([2., 2.])
    """

    robust: ClassVar[bool] = False
    tolerance: ClassVar[str] = "none"
    passes: ClassVar[int] = 1

    def most(self, n: int) -> int:
        return n

    def sensitivity(self, change: int) -> float:
        return math.inf

    def terms(self, rows: Tensor, center: Tensor) -> Tensor:
        return rows

    def step(self, center: Tensor, released: Tensor) -> Tensor:
        return released

    def mix(self, geometry: Geometry, byzantine: int) -> Tensor:
        n = geometry.rows
        return torch.full((n,), 1 / n, dtype=torch.float64)
