"""FedLin: clients of different losses and speeds, without a bias (Mitra, Jaafar, Pappas & Hassani
2021, "Linear convergence in federated learning: tackling client heterogeneity and sparse
gradients", Algorithm 1, without its compression of gradients).

With x the broadcast model, g the cohort's mean gradient there, and tau_k the local steps of client
k, each step is

    w <- w - (eta / tau_k) (grad f_k(w) - grad f_k(x) + g)

so that every client goes as far in a round, however many steps it takes. The paper's gradients are
of all examples; here that at w is of a batch, as local SGD has it.
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
    """FedLin: the cohort's mean gradient g first, then training that follows it at one length.

    `client.lr` is eta, what the rates of all steps of a client's round add up to. A client sends d
    numbers twice a round and is sent 3 d.

    Under privacy both exchanges ask one cohort, each row is clipped to the same bound (gradients
    times `gradient_scale`, which undoes itself afterwards), and the round is one event: Poisson(q,
    Gaussian(z / sqrt(2))). How many steps a client takes stays with it: it changes the row that is
    clipped, and is not sent.
    """

    exchanges: ClassVar[int] = 2
    broadcasts: ClassVar[int] = 2
    anchored: ClassVar[Anchor] = "all"

    gradient_scale: float = Field(1.0, gt=0)
    """By what gradients are multiplied before they are clipped, and divided afterwards."""

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        layout, scale = self.layout(len(params)), self.gradient_scale
        gradient = yield Exchange("gradient", {"params": params}, layout, scale)
        return {"gradient": gradient / scale}

    def along(self, step: LocalStep, broadcast: Broadcast) -> tuple[Tensor, Tensor | None]:
        if step.state is None:
            raise ValueError("FedLin needs each client's own gradient at the broadcast model")
        corrected = step.grad - step.state + broadcast["gradient"]
        return corrected / step.steps[:, None].clamp(min=1), step.carried
