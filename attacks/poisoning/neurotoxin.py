"""Neurotoxin: a backdoor in parameters that honest clients hardly move."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from attacks.poisoning.backdoor import Backdoor
from attacks.types import Knowledge, State


class Neurotoxin(Backdoor):
    """Trains a backdoor without the parameters that the last round moved most, so that it lasts.

    With g = w_t - w_{t-1}, the last step of the released model, and S the `top` part of all
    parameters with the largest |g|, every local step leaves S alone: the direction is projected
    onto the others. Honest clients go on moving S, and hardly undo what lies elsewhere. In the
    first round nothing has moved, and all parameters are free; where a later one leaves the model
    as it was, S stays as it is. A parameter that did not move is never in S.

    g is what everybody sees: attackers follow all broadcasts, also of rounds that they take no
    part in. Where the server's optimizer is not plain averaging, it is its step and not the
    aggregate. (The authors' code takes the attackers' own gradient on clean examples instead.)

    Knows its own data and updates, and broadcast models. Success: that of `backdoor`; how long it
    lasts shows after `attack.last_round`.

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
    """The part of parameters, those that moved most, that is left alone."""

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
