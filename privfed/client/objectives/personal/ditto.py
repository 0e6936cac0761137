"""Ditto: a personal model beside the global one, held near it (Li, Hu, Beirami & Smith 2021,
"Ditto: fair and robust federated learning through personalization", Algorithm 1, whose solver of
the global problem is FedAvg).

With x the broadcast model and v_k what client k keeps, each local step is on one batch

    w   <- w - lr grad f_k(w)                                 from w = x: what it sends is w - x
    v_k <- v_k - r lr (grad f_k(v_k) + lambda (v_k - x))

In the paper all v_k begin at the model of round 1; here a newcomer begins at the one that it is
sent, which is the same where all take part from round 1.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from privfed.client.descent import Anchor, LocalStep
from privfed.client.exchange import Broadcast
from privfed.client.objective import Objective, Work
from privfed.core.deferred import Tensor


class Beside(Objective):
    """FedAvg; what a client keeps is carried along its steps, and never sent.

    Under privacy a round is FedAvg's: w, and so the row, follows from the broadcast model, the
    client's examples and its coins alone, whatever it keeps. That costs nothing while it stays:
    what is shown of it is covered by no epsilon. Subclasses step along the gradient at w, and use
    the one at their `anchor`, of the same batch, for what they keep.
    """

    keeps: ClassVar[int] = 1
    anchored: ClassVar[Anchor] = "batch"

    @property
    def sums_states(self) -> bool:
        return False

    def unseen(self, broadcast: Broadcast) -> Tensor:
        return broadcast["params"]

    def carry(self, broadcast: Broadcast, state: Tensor | None) -> Tensor:
        return self.unseen(broadcast) if state is None else state

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        return w - broadcast["params"], work.carried


class Ditto(Beside):
    """Ditto: each client keeps a personal model, pulled towards the global one.

    A client keeps d numbers, sends d (FedAvg's update) and is sent d; a step takes two gradients of
    one batch. With strength 0 personal models are trained by nobody but their clients.

    Under privacy a round is FedAvg's (`Beside`): no row depends on what is kept. A personal model
    costs nothing while it stays: what is shown of it is covered by no epsilon.
    """

    strength: float = Field(0.1, ge=0)
    """lambda: how strongly a personal model is pulled towards the global one."""
    personal_rate: float = Field(1.0, gt=0)
    """r: the rate of personal steps over client.lr."""

    def anchor(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, carried: Tensor | None
    ) -> Tensor:
        return _personal(carried)

    def along(self, step: LocalStep, broadcast: Broadcast) -> tuple[Tensor, Tensor | None]:
        v, rate = _personal(step.carried), step.lr * self.personal_rate
        pulled = _personal(step.anchor) + self.strength * (v - broadcast["params"])
        return step.grad, v - rate * pulled

    def personal(
        self, broadcast: Broadcast, state: Tensor | None, measured: Tensor | None
    ) -> Tensor:
        return self.carry(broadcast, state)


def _personal(carried: Tensor | None) -> Tensor:
    if carried is None:
        raise ValueError("Ditto needs each client's personal model, and its gradient there")
    return carried
