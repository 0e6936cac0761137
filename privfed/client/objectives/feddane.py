"""FedDANE: a Newton-type method from two exchanges.

Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar & Smith 2019, "FedDANE", Algorithm 2, the federated
form of DANE (Shamir, Srebro & Zhang 2014).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

from pydantic import Field

from privfed.client.descent import Anchor
from privfed.client.exchange import Broadcast, Exchange
from privfed.client.objective import Memory, Objective
from privfed.core.deferred import Tensor


class FedDane(Objective):
    """FedDANE: releases the cohort's mean gradient g, then trains with a correction toward it.

    The local loss has the additional term <g - grad F_k(broadcast), w> + mu / 2 |w - broadcast|^2,
    whose gradient is g - grad F_k(broadcast) + mu (w - broadcast); grad F_k is over all of a
    client's examples. In each round a client sends 2 d numbers and receives 3 d.

    Under privacy both exchanges use the same cohort (the paper draws two), each row is clipped to
    the same bound (gradients times `gradient_scale`, which is divided out afterwards), and the
    round is one event: Poisson(q, Gaussian(z / sqrt(2))).
    """

    exchanges: ClassVar[int] = 2
    broadcasts: ClassVar[int] = 2
    anchored: ClassVar[Anchor] = "all"

    mu: float = Field(0.01, ge=0)
    """Weight of the proximal term."""
    gradient_scale: float = Field(1.0, gt=0)
    """Factor of gradients before clipping, divided out afterwards."""

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        layout, scale = self.layout(len(params)), self.gradient_scale
        gradient = yield Exchange("gradient", {"params": params}, layout, scale)
        return {"gradient": gradient / scale}

    def direction(
        self, grad: Tensor, w: Tensor, broadcast: Broadcast, state: Tensor | None
    ) -> Tensor:
        if state is None:
            raise ValueError("FedDANE needs each client's gradient at the broadcast model")
        return grad + broadcast["gradient"] - state + self.mu * (w - broadcast["params"])
