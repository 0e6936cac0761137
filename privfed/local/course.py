"""Clients on their course through local training: where they are, and what they have with them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privfed.local.exchange import Broadcast
from privfed.local.objective import LocalStep, Objective


@dataclass(frozen=True)
class Course:
    """Models `w` `[c, d]` on their way from `origin` `[c, d]`, and what is `carried` `[c, j]`.

    Both change in place, step by step. `state` `[c, k]` is what clients keep, or the gradients that
    their objective is anchored to.
    """

    origin: Tensor
    w: Tensor
    state: Tensor | None
    carried: Tensor | None

    @classmethod
    def begin(
        cls,
        objective: Objective,
        clients: int,
        broadcast: Broadcast,
        state: Tensor | None,
        measured: Tensor | None = None,
    ) -> Course:
        """So many clients before their first step, as `objective` has them begin."""
        origin = objective.origin(broadcast, state, measured).expand(clients, -1)
        carried = objective.carry(broadcast, state)
        if carried is not None:
            carried = carried.expand(clients, -1).clone()
        return cls(origin, origin.clone(), state, carried)

    def of(self, clients: slice) -> Course:
        """Some of the clients, whose steps are steps of this course."""
        state = None if self.state is None else self.state[clients]
        carried = None if self.carried is None else self.carried[clients]
        return Course(self.origin[clients], self.w[clients], state, carried)

    def step(
        self,
        grad: Tensor,
        anchor: Tensor | None,
        number: int,
        epoch: Tensor,
        steps: Tensor,
        lr: float,
    ) -> LocalStep:
        """The step that comes next, with the gradients `[c, d]` of everybody's batch."""
        return LocalStep(self.w, grad, anchor, self.state, self.carried, number, epoch, steps, lr)

    def go(
        self,
        direction: Tensor,
        lr: float,
        carried: Tensor | None,
        training: Tensor | None = None,
    ) -> None:
        """Move models by `-lr` times `direction` `[c, d]`, and carry `carried` `[c, j]` from here.

        Only clients who are `training` `[c, 1]` do, where that is not all.
        """
        if self.carried is not None and carried is not None:  # before models move: it may be these
            going = carried if training is None else torch.where(training, carried, self.carried)
            self.carried.copy_(going)
        if training is None:
            self.w.sub_(direction, alpha=lr)
        else:
            self.w.sub_(torch.where(training, lr * direction, 0.0))
