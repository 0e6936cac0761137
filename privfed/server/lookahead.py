"""Lookahead: fast weights explore, and slow weights follow them (Zhang, Lucas, Hinton & Ba 2019,
"Lookahead optimizer: k steps forward, 1 step back", Algorithm 1).

From slow weights phi = the model, k rounds are steps of an inner optimizer, here SGD with momentum
on the average update, and then

    phi <- phi + alpha (model - phi),    model <- phi

The inner momentum goes on as it is, of what the paper tries the simplest.
"""

from __future__ import annotations

from pydantic import Field

from privfed.core.deferred import Tensor, torch
from privfed.server.optimizer import State, WithRate


class Lookahead(WithRate):
    """FedAvg, with momentum or without, that goes back part of the way every few rounds.

    Between, the model of a round is the fast one. With alpha = 1 it is FedAvgM, and with momentum 0
    FedAvg.
    """

    momentum: float = Field(0.0, ge=0, lt=1)
    """The momentum of the inner steps; 0 is none."""
    every: int = Field(5, ge=1)
    """After how many rounds slow weights follow: k."""
    alpha: float = Field(0.5, gt=0, le=1)
    """What part of the way they follow."""

    def init(self, params: Tensor) -> State:
        return {
            "momentum": torch.zeros_like(params),
            "slow": params.clone(),
            "rounds": torch.zeros((), dtype=torch.int64),
        }

    def step(self, params: Tensor, delta: Tensor, state: State) -> tuple[Tensor, State]:
        momentum = self.momentum * state["momentum"] + delta
        model, slow, rounds = params + self.lr * momentum, state["slow"], state["rounds"] + 1
        if int(rounds) == self.every:
            model = slow + self.alpha * (model - slow)
            slow, rounds = model, torch.zeros_like(rounds)
        return model, {"momentum": momentum, "slow": slow, "rounds": rounds}
