"""Neurotoxin: a backdoor in parameters that honest clients rarely change."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from attacks.poisoning.backdoor import Backdoor
from attacks.types import Knowledge, State


class Neurotoxin(Backdoor):
    """Trains a lasting backdoor: does not change the parameters that the last round changed most.

    g = w_t - w_{t-1} is the last step of the released model, and S the `top` fraction of all
    parameters with the largest |g|. No local step changes S: the direction is projected onto the
    others. Honest clients continue to change S, and rarely undo changes elsewhere. In the first
    round all parameters are trained; a later round that leaves the model unchanged leaves S
    unchanged. A parameter that the last step did not change is never in S.

    g is public: attackers follow all broadcasts, including rounds in which they do not take part.
    If the server's optimizer is not plain averaging, g is the optimizer's step and not the
    aggregate. (The authors' code uses the attackers' own gradient on clean examples instead.)

    Knows its own data and updates, and broadcast models. Success: that of `backdoor`; its
    durability is measured after `attack.last_round`.

    Source: Zhang, Panda, Song, Yang, Mahoney, Gonzalez, Ramchandran & Mittal 2022, "Neurotoxin:
    durable backdoors in federated learning", Algorithm 1.

    >>> import torch
    >>> attack, state = Neurotoxin(top=0.5), {}
    >>> for params in (torch.zeros(2), torch.tensor([3.0, -1.0])):
    ...     state = attack.watch(params, state)
    >>> attack.steer(torch.tensor([[5.0, 7.0]]), torch.zeros(1, 2), 0.1, state)
    tensor([[0., 7.]])
    """

    knows: ClassVar[frozenset[Knowledge]] = Backdoor.knows | {Knowledge.BROADCASTS}
    steers: ClassVar[bool] = True
    top: float = Field(0.05, ge=0, lt=1)
    """Fraction of parameters that attackers do not change: those that changed most in the last
    round.
    """

    def watch(self, params: Tensor, state: State) -> State:
        if "params" not in state:
            return {**state, "params": params.clone(), "free": torch.ones_like(params)}
        moved = (params - state["params"].to(params)).abs()
        if not bool(moved.any()):
            return state
        most = moved.topk(int(self.top * len(params)))
        free = torch.ones_like(params)
        free[most.indices[most.values > 0]] = 0.0
        return {**state, "params": params.clone(), "free": free}

    def steer(self, direction: Tensor, away: Tensor, lr: float, state: State) -> Tensor:
        return direction * state["free"].to(direction)
