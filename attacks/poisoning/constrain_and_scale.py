"""Constrain-and-scale: a backdoor trained to remain near the broadcast model."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from attacks.poisoning.backdoor import Backdoor
from attacks.types import State, View


class ConstrainAndScale(Backdoor):
    """Trains a backdoor with a loss that penalises the distance from the broadcast model.

    Each local step descends along the gradient of alpha L_class + (1 - alpha) L_anomaly. L_anomaly
    = |w - w_t| is the Euclidean distance from the broadcast model; its gradient is (w - w_t) / |w -
    w_t| (0 at w_t). The update is then multiplied by `boost` and clipped to a length of `longest`
    (0: not clipped). Set `longest` to the largest update norm that a detector accepts.

    Knows its own data and updates. Success: that of `backdoor`.

    Source: Bagdasaryan, Veit, Hua, Estrin & Shmatikov 2020, section 3.3: "constrain-and-scale"
    (equation 4, with the p-norm distance as the anomaly), "train-and-scale" (gamma = S / |w - w_t|;
    here alone with alpha = 1).

    >>> import torch
    >>> direction, away = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    >>> ConstrainAndScale(alpha=0.5).steer(direction, away, 0.1, {})
    tensor([[0.5000, 0.5000]])
    """

    steers: ClassVar[bool] = True
    alpha: float = Field(0.7, gt=0, le=1)
    """Weight of the classification loss on poisoned examples; 1 removes the penalty on the
    distance."""
    longest: float = Field(0.0, ge=0, le=1e9)
    """L2 norm to which updates are clipped after the multiplication; 0: not clipped."""

    @property
    def corrupts(self) -> bool:
        return super().corrupts or self.longest > 0.0

    def steer(self, direction: Tensor, away: Tensor, lr: float, state: State) -> Tensor:
        length = torch.linalg.vector_norm(away, dim=1, keepdim=True)
        outward = torch.where(length > 0, away / length, 0.0)
        return self.alpha * direction + (1 - self.alpha) * outward

    def corrupt(self, view: View, state: State, rng: np.random.Generator) -> tuple[Tensor, State]:
        rows = self.boost * view.byzantine
        return (shortened(rows, self.longest) if self.longest else rows), state


def shortened(rows: Tensor, longest: float) -> Tensor:
    """Returns `rows` `[n, m]`, each clipped to L2 norm at most `longest`."""
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return torch.where(length > longest, rows * (longest / length), rows)
