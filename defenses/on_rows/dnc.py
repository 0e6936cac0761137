"""Divide and conquer (DnC): removes updates with large projections on the top direction."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from defenses.geometry import Geometry
from defenses.weighing import WeightRule


class DivideAndConquer(WeightRule):
    """The mean of the updates with the smallest projections on the top direction (DnC).

    F(x) = mean of the x_k without the `share` * f rows of largest <x_k - m, u>^2, where m is the
    mean of all rows and u the top singular direction of the rows x_k - m.

    Needs rows. Tolerates fewer than half Byzantine clients that share a direction, as a poisoning
    attack requires; Byzantine rows in different directions mask one another (no kappa). One Gram
    matrix, O(n^2 d + n^3). The published rule repeatedly samples coordinates to make the
    decomposition affordable; with the Gram matrix, one decomposition covers all coordinates.

    Source: Shejwalkar & Houmansadr 2021, "Manipulating the byzantine", algorithm 2.

    >>> import torch
    >>> rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [9.0, 9.0]])
    >>> DivideAndConquer()(rows, byzantine=1)
    tensor([0.5000, 0.5000])
    """

    bounded: ClassVar[bool] = False

    share: float = Field(1.0, ge=1, le=2)
    """Number of rows removed, as a multiple of the assumed number of Byzantine rows."""

    def mix(self, geometry: Geometry, byzantine: int) -> Tensor:
        n, about = geometry.rows, geometry.about_mean()
        vectors = torch.linalg.eigh(about).eigenvectors
        scores = vectors[:, -1].abs()  # the projections up to a common scale
        inliers = scores.argsort(stable=True)[: max(1, n - int(self.share * byzantine))]
        weights = about.new_zeros(n)
        weights[inliers] = 1 / len(inliers)
        return weights
