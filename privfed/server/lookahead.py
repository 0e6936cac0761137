"""Lookahead and SlowMo.

Lookahead: an inner optimizer moves fast weights; every few rounds, slow weights move toward them.

Source: Zhang, Lucas, Hinton & Ba 2019, "Lookahead optimizer: k steps forward, 1 step back",
Algorithm 1.

Initially, the slow weights phi are the model. After every k rounds of an inner optimizer, here SGD
with momentum on the average update,
    phi <- phi + alpha (model - phi),    model <- phi
This leaves the inner momentum unchanged, which is the simplest of the paper's variants.

SlowMo: server momentum in units of the clients' rate (Wang, Tantia, Ballas & Rabbat 2020, "SlowMo:
improving communication-efficient distributed SGD with slow momentum", Algorithm 1).

With gamma_t the clients' rate in round t, x_t the model and x_t,tau the average of local models:

    u <- beta u + (x_t - x_t,tau) / gamma_t
    x_(t+1) = x_t - alpha gamma_t u

Only ratios of gamma_t between rounds matter, so gamma_t is the factor of client.schedule here. If
the schedule is constant, SlowMo is FedAvgM. If rates decay, FedAvgM's momentum still has the larger
scale of earlier rounds, but SlowMo's momentum has the current scale.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from privfed.core.deferred import Tensor, torch
from privfed.server.fedopt import FedAvgM
from privfed.server.optimizer import State, WithRate


class SlowMo(FedAvgM):
    """Server momentum of updates, each divided by the clients' learning rate of its round.

    The factor of client.schedule serves as this rate, since only its ratios between rounds matter.
    SlowMo reads released aggregates and public constants only. With a constant client.schedule it
    is FedAvgM; with momentum 0 it is FedAvg.
    """

    in_client_rates: ClassVar[bool] = True

    lr: float = Field(1.0, ge=0)
    """The server's learning rate alpha."""
    momentum: float = Field(0.7, ge=0, lt=1)
    """Slow momentum beta; 0 is FedAvg."""


class Lookahead(WithRate):
    """FedAvg, with or without momentum, that interpolates to slow weights every `every` rounds.

    In all other rounds the model consists of the fast weights. With alpha = 1 this is FedAvgM, and
    FedAvg if the momentum is also 0.
    """

    momentum: float = Field(0.0, ge=0, lt=1)
    """Momentum of the inner steps; 0 is none."""
    every: int = Field(5, ge=1)
    """Number of rounds k between updates of the slow weights."""
    alpha: float = Field(0.5, gt=0, le=1)
    """Interpolation factor of the slow weights."""

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
