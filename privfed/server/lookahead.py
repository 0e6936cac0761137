"""Lookahead: fast weights explore, and slow weights follow them (Zhang, Lucas, Hinton & Ba 2019,
"Lookahead optimizer: k steps forward, 1 step back", Algorithm 1).

From slow weights phi = the model, k rounds are steps of an inner optimizer, here SGD with momentum
on the average update, and then

    phi <- phi + alpha (model - phi),    model <- phi

The inner momentum goes on as it is, of what the paper tries the simplest.

SlowMo: server momentum in units of the clients' rate (Wang, Tantia, Ballas & Rabbat 2020,
"SlowMo: improving communication-efficient distributed SGD with slow momentum", Algorithm 1).

With gamma_t the clients' rate in round t, x_t the model and x_t,tau the average of local models:

    u <- beta u + (x_t - x_t,tau) / gamma_t
    x_(t+1) = x_t - alpha gamma_t u

Only by what factor gamma_t differs between rounds matters, so gamma_t is the factor of
client.schedule here. Where that is constant, SlowMo is FedAvgM; where rates fall, FedAvgM goes on
with the long steps of former rounds, and SlowMo with steps of today's length.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from privfed.core.deferred import Tensor, torch
from privfed.server.fedopt import FedAvgM
from privfed.server.optimizer import State, WithRate


class SlowMo(FedAvgM):
    """Momentum over updates that are divided by the clients' rate of their round.

    It reads released aggregates and public constants only. Under a constant client.schedule it is
    FedAvgM; with momentum 0 it is FedAvg.
    """

    in_client_rates: ClassVar[bool] = True

    lr: float = Field(1.0, ge=0)
    """The server's learning rate: alpha."""
    momentum: float = Field(0.7, ge=0, lt=1)
    """The slow momentum: beta; 0 is FedAvg."""


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
