"""Local AdaAlter: adaptive rates at clients.

Source: Xie, Koyejo, Gupta & Lin 2019, "Local AdaAlter: communication-efficient stochastic gradient
descent with adaptive learning rates".

B2 is the sum of squared gradients at the server, which begins at b0^2; t = 1, 2, … counts a
client's local steps since it received B2; g is its gradient. For each coordinate:

    w  <- w - lr g / sqrt(B2 + t epsilon^2),      A2 <- A2 + g^2       at each step, A2 from 0
    B2 <- B2 + mean of the clients' A2                                 after each round

B2 changes only between rounds, so all clients use the same rates; t epsilon^2 replaces the
squared gradients of the current round, which are not known yet.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

from pydantic import Field

from privfed.client.descent import LocalStep
from privfed.client.exchange import Broadcast, Exchange
from privfed.client.objective import Cohorts, Memory, Objective, Work
from privfed.core.deferred import Tensor, torch
from privfed.core.vector import Layout


class AdaAlter(Objective):
    """Local AdaAlter: adaptive local learning rates, computed from all clients' gradients.

    A client sends its update and its sum of squared gradients, 2 d numbers, and receives 2 d. Under
    privacy the two are bounded jointly: one clip over (update, square_scale * squares), one
    release, one event. The server's sum of squared gradients, B2, is computed from releases. A mean
    of squares that noise makes negative counts as zero, so B2 never falls; positive noise makes B2
    grow, and the rates fall, faster than without noise.
    """

    broadcasts: ClassVar[int] = 2

    b0: float = Field(1.0, gt=0)
    """Square root of the initial sum of squares; for large b0, training approaches FedAvg with
    learning rate lr / b0.
    """
    epsilon: float = Field(1.0, ge=0)
    """Square root of the constant that replaces a step's squared gradient within a round."""
    square_scale: float = Field(0.1, gt=0)
    """Weight of the squares relative to the update, under their joint clip."""

    def layout(self, d: int) -> Layout:
        return Layout((("delta", d), ("squares", d)))

    def init(self, params: Tensor) -> Memory:
        return {"squares": torch.full_like(params, self.b0**2)}

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        yield from ()
        return dict(memory)

    def carry(self, broadcast: Broadcast, state: Tensor | None) -> Tensor:
        return torch.zeros_like(broadcast["params"])

    def along(self, step: LocalStep, broadcast: Broadcast) -> tuple[Tensor, Tensor | None]:
        foreseen = broadcast["squares"] + (step.number + 1) * self.epsilon**2
        return step.grad / foreseen.sqrt(), _carried(step.carried) + step.grad.square()

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        squares = self.square_scale * _carried(work.carried)
        return torch.cat([w - broadcast["params"], squares], dim=1), state

    def admitted(self, rows: Tensor) -> Tensor:
        delta, squares = rows.chunk(2, dim=1)
        return torch.cat([delta, squares.clamp(min=0)], dim=1)

    def conclude(
        self, broadcast: Broadcast, released: Tensor, memory: Memory, cohorts: Cohorts
    ) -> tuple[Tensor, Memory]:
        layout = self.layout(len(broadcast["params"]))
        squares = layout.view(released, "squares").clamp(min=0) / self.square_scale
        return layout.view(released, "delta"), {"squares": memory["squares"] + squares}


def _carried(carried: Tensor | None) -> Tensor:
    if carried is None:
        raise ValueError("AdaAlter needs the carried sums of squared gradients, but got none")
    return carried
