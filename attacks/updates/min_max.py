"""Min-max and min-sum: rows about as far from the honest mean as honest updates are from one
another.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from attacks.types import FullKnowledge, View


class Farthest(FullKnowledge):
    """Sends the row mu - gamma p for the largest gamma that the attack considers undetectable.

    mu is the honest mean and p a unit direction. If p would be zero, mu is sent.
    """

    direction: Literal["unit", "sign", "std"] = "std"
    """Direction p: "unit" is along the honest mean, "sign" along its signs, "std" along the
    standard deviations."""

    @abstractmethod
    def reach(self, away: Tensor, p: Tensor) -> float:
        """Returns the largest gamma for which the attack considers mu - gamma p undetectable.

        Args:
          away: mu - x_k for each honest row x_k, shape `[h, m]`.
          p: unit direction, shape `[m]`.
        """

    def malicious_row(self, honest: Tensor, view: View, rng: np.random.Generator) -> Tensor:
        rows = honest.double()
        mean = rows.mean(0)
        p = {
            "unit": mean,
            "sign": mean.sign(),
            "std": rows.std(0, correction=0),
        }[self.direction]
        length = p.norm()
        if not float(length) > 0.0:
            return honest.mean(0)
        p = p / length
        row: Tensor = mean - self.reach(mean - rows, p) * p
        return row.to(honest.dtype)


class MinMax(Farthest):
    """Sends a row no farther from any honest update than two honest updates are from each other.

    The row is mu - gamma p, with mu the honest mean and p along mu, its signs, or the standard
    deviations. gamma is the largest for which max_k |mu - gamma p - x_k| <= max_ij |x_i - x_j|, the
    least root of h parabolas.

    Knows all honest updates. Source: Shejwalkar & Houmansadr 2021, section IV-B, equation 4.

    >>> import torch, numpy
    >>> view = View(1, torch.zeros(1, 1), torch.tensor([[1.0], [3.0]]))
    >>> MinMax(direction="unit").corrupt(view, {}, numpy.random.default_rng(0))[0]
    tensor([[1.]])
    """

    def reach(self, away: Tensor, p: Tensor) -> float:
        widest = float(torch.cdist(away, away).max()) ** 2
        along, squared = away @ p, away.square().sum(1)
        return float((along + (along**2 + (widest - squared).clamp(min=0.0)).sqrt()).min())


class MinSum(Farthest):
    """Sends a row whose squared distances to honest updates sum to at most the largest honest sum.

    The row is mu - gamma p as in `MinMax`. gamma is the largest for which sum_k |mu - gamma p -
    x_k|^2 <= max_i sum_j |x_i - x_j|^2, the largest honest sum (as in the paper; its code used the
    least).

    Knows all honest updates. Source: Shejwalkar & Houmansadr 2021, section IV-B, equation 5.

    >>> import torch, numpy
    >>> view = View(1, torch.zeros(1, 1), torch.tensor([[1.0], [3.0]]))
    >>> MinSum(direction="unit").corrupt(view, {}, numpy.random.default_rng(0))[0]
    tensor([[1.]])
    """

    def reach(self, away: Tensor, p: Tensor) -> float:
        largest = float(torch.cdist(away, away).square().sum(1).max())
        return math.sqrt(max(0.0, largest - float(away.square().sum())) / len(away))
