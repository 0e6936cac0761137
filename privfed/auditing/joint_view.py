"""What rows that share noise say together of one of them."""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from torch import Tensor

from defenses.types import RowRule
from privfed.privacy.noise.pairwise import PairwiseNoise


class SeenBesideOthers(RowRule):
    """The sum of rows by `weights`, that says most of the first one: its noise is the least."""

    weights: tuple[float, ...]

    @classmethod
    def of(cls, noise: PairwiseNoise, divisor: int) -> Self:
        """The weights `[n]` over rows with this noise, the first of them being 1 / `divisor`.

        They are the first line of S^-1, S being the covariance over rows, over its first number: of
        all linear functions that the first row moves as much, this one has the least variance.
        """
        n, ratio = noise.clients, noise.shared / noise.alone if noise.alone else 0.0
        covariance = np.eye(n) + ratio**2 * (n * np.eye(n) - np.ones((n, n)))
        line = np.linalg.inv(covariance)[0]
        return cls(weights=tuple((line / line[0] / divisor).tolist()))

    def __call__(self, rows: Tensor, byzantine: int) -> Tensor:
        weights = torch.tensor(self.weights, dtype=torch.float64)
        return (weights @ rows.double()).to(rows.dtype)
