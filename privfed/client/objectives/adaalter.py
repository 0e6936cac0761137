"""Local AdaAlter: adaptive rates at clients.

Source: Xie, Koyejo, Gupta & Lin 2019, "Local AdaAlter: communication-efficient stochastic gradient
descent with adaptive learning rates".

With B2 the squared gradients accumulated by the server, from b0^2, t = 1, 2, … a client's local
steps since it received them, and g its gradient, coordinate by coordinate:

    w  <- w - lr g / sqrt(B2 + t epsilon^2),      A2 <- A2 + g^2       at each step, A2 from 0
    B2 <- B2 + mean of the clients' A2                                 after each round

Rates change between rounds only, by the sum over all clients, so that all clients use the same
rates; t epsilon^2 stands for the unknown squares of this round.
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
    """Local AdaAlter: adaptive local learning rates that follow from all clients' gradients.

    A client sends its update and its sum of squared gradients, 2 d numbers, and is sent 2 d. Under
    privacy the two are bounded jointly: one clip over (update, square_scale * squares), one
    release, one event. B2 follows from releases; where noise makes a mean of squares negative, it
    counts as zero, so that B2 never falls. The remaining noise makes B2 grow, and rates fall,
    faster than gradients would.
    """

    broadcasts: ClassVar[int] = 2

    b0: float = Field(1.0, gt=0)
    """The sums of squares start at b0^2; the larger, the more like FedAvg at lr / b0."""
    epsilon: float = Field(1.0, ge=0)
    """A step's squared gradients count as epsilon^2 until they are known."""
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
        raise ValueError("AdaAlter needs the squared gradients that clients sum")
    return carried
