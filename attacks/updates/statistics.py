"""Attacks within the variance of honest updates: ALIE, inner-product manipulation."""

from __future__ import annotations

import numpy as np
from pydantic import Field
from scipy.special import ndtri
from torch import Tensor

from attacks.types import FullKnowledge, View


class Alie(FullKnowledge):
    """Sends the honest mean shifted by z standard deviations ("a little is enough", ALIE).

    The row is mu - z sigma, with mu and sigma the coordinate-wise mean and standard deviation of
    honest updates. By default z = z_max = Phi^-1((n - m - s) / (n - m)), s = floor(n / 2 + 1) - m,
    for n clients with m Byzantine ones. z_max is at least 0 and tiny at small n; then set z. The
    paper has mu + z sigma for gradients, whose negatives are updates. A negative z shifts to the
    other side.

    Knows all honest updates. Source: Baruch, Baruch & Goldberg 2019, algorithm 3.

    >>> import torch, numpy
    >>> honest = torch.tensor([[0.0, 0.0], [2.0, 4.0]])
    >>> view = View(1, torch.zeros(1, 2), honest)
    >>> Alie(z=0.5).corrupt(view, {}, numpy.random.default_rng(0))[0]
    tensor([[0.5000, 1.0000]])
    """

    z: float | None = Field(None, ge=-100, le=100)
    """Shift from the mean, in standard deviations; None: z_max, as published."""

    def malicious_row(self, honest: Tensor, view: View, rng: np.random.Generator) -> Tensor:
        z = (
            z_max(len(honest) + len(view.byzantine), len(view.byzantine))
            if self.z is None
            else self.z
        )
        return honest.mean(0) - z * honest.std(0, correction=0)


def z_max(n: int, byzantine: int) -> float:
    """Returns the published z_max, but at least 0, for `n` clients with `byzantine` Byzantine ones.

    >>> [round(z_max(*case), 3) for case in [(25, 5), (12, 2), (50, 24)]]
    [0.253, 0.0, 1.426]
    """
    honest = n - byzantine
    supporters = n // 2 + 1 - byzantine
    if honest <= 0 or supporters >= honest:
        return 0.0
    return max(0.0, float(ndtri(min(1 - 1e-9, (honest - supporters) / honest))))


class InnerProduct(FullKnowledge):
    """Sends the negated honest mean: -strength mu (inner-product manipulation).

    Knows all honest updates. Source: Xie, Koyejo & Gupta 2019, "Fall of empires", section 4.

    >>> import torch, numpy
    >>> view = View(1, torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [3.0, 2.0]]))
    >>> InnerProduct(strength=0.5).corrupt(view, {}, numpy.random.default_rng(0))[0]
    tensor([[-1.0000, -0.5000]])
    """

    strength: float = Field(1.0, gt=0, le=1e6)
    """Factor by which the negated honest mean is multiplied."""

    def malicious_row(self, honest: Tensor, view: View, rng: np.random.Generator) -> Tensor:
        return -self.strength * honest.mean(0)
