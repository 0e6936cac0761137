"""FedLin: unbiased training of clients with different losses and speeds.

Source: Mitra, Jaafar, Pappas & Hassani 2021, "Linear convergence in federated learning: tackling
client heterogeneity and sparse gradients", Algorithm 1, without its compression of gradients.

With x the broadcast model, g the cohort's mean gradient there, and tau_k the local steps of client
k, each step is

    w <- w - (eta / tau_k) (grad f_k(w) - grad f_k(x) + g)

The sum of the step sizes of a round is thus eta for every client, whatever its number of steps.
The paper's gradients are over all examples; here the gradient at w is over a batch, as in local
SGD.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

from pydantic import Field

from privfed.client.descent import Anchor, LocalStep
from privfed.client.exchange import Broadcast, Exchange
from privfed.client.objective import Memory, Objective
from privfed.core.deferred import Tensor


class FedLin(Objective):
    """FedLin: releases the cohort's mean gradient g, then trains with equal sums of step sizes.

    `client.lr` is eta, the sum of the step sizes of a client's round. In each round a client sends
    2 d numbers and receives 3 d.

    Under privacy both exchanges use one cohort, each row is clipped to the same bound (gradients
    times `gradient_scale`, which is divided out afterwards), and the round is one event: Poisson(q,
    Gaussian(z / sqrt(2))). A client's number of steps is not sent: it affects only the clipped row.
    """

    exchanges: ClassVar[int] = 2
    broadcasts: ClassVar[int] = 2
    anchored: ClassVar[Anchor] = "all"

    gradient_scale: float = Field(1.0, gt=0)
    """Factor of gradients before clipping, divided out afterwards."""

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        layout, scale = self.layout(len(params)), self.gradient_scale
        gradient = yield Exchange("gradient", {"params": params}, layout, scale)
        return {"gradient": gradient / scale}

    def along(self, step: LocalStep, broadcast: Broadcast) -> tuple[Tensor, Tensor | None]:
        if step.state is None:
            raise ValueError("FedLin needs each client's gradient at the broadcast model")
        corrected = step.grad - step.state + broadcast["gradient"]
        return corrected / step.steps[:, None].clamp(min=1), step.carried
