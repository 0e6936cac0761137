"""Projected gradient descent, then model replacement."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from attacks.poisoning.backdoor import Backdoor
from attacks.poisoning.constrain_and_scale import shortened
from attacks.types import State


class PgdReplacement(Backdoor):
    """Trains a backdoor inside a ball around the broadcast model, then replaces the model.

    After every local step, w is projected: w <- w_t + min(1, epsilon / |w - w_t|) (w - w_t), with
    w_t the broadcast model. So the trained model is in the ball, too. The update, at most epsilon
    long, is then multiplied by `boost`. Set boost * epsilon to the largest update norm that the
    server accepts.

    Projection at every step is the published method (the authors' code can also project at
    intervals). It differs from clipping the end point: after a projection the next gradient is
    taken at another point.

    Knows its own data and updates. Success: that of `backdoor`.

    Source: Sun, Kairouz, Suresh & McMahan 2019, "Can you really backdoor federated learning?",
    section 2 (norm-bounded backdoors); Wang et al. 2020, "Attack of the tails", section 3.2 (PGD
    attack, with and without model replacement).

    >>> import torch
    >>> attack, away = PgdReplacement(epsilon=1.0), torch.tensor([[0.6, 0.0]])
    >>> away - 0.5 * attack.steer(torch.tensor([[-2.4, 0.0]]), away, 0.5, {})
    tensor([[1., 0.]])
    """

    steers: ClassVar[bool] = True
    epsilon: float = Field(0.3, gt=0, le=1e9)
    """Radius of the ball around the broadcast model (L2 norm of parameters)."""

    def steer(self, direction: Tensor, away: Tensor, lr: float, state: State) -> Tensor:
        if lr == 0.0:
            return direction
        return (away - shortened(away - lr * direction, self.epsilon)) / lr
