"""FedFOR: first-order regularisation against reverting the last global update.

Source: Tian, Smith & Kira 2022, "FedFOR: stateless heterogeneous federated learning with
first-order regularization".

With broadcasts w^(t-1) (current) and w^(t-2) (previous), g = (w^(t-2) - w^(t-1)) / eta is the
previous global pseudo-gradient. The local loss gains

    alpha sum_j relu( g_j (w_j - w_j^(t-1)) ),

whose gradient is alpha g_j where g_j (w_j - w_j^(t-1)) > 0 and 0 elsewhere: only movement *against*
the previous global update is penalised. There is no term in the first round.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

from pydantic import Field

from privfed.client.exchange import Broadcast, Exchange
from privfed.client.objective import Cohorts, Memory, Objective
from privfed.core.deferred import Tensor, torch


class FedFor(Objective):
    """FedFOR's one-sided first-order term; stateless: a new client needs two models only.

    The term is `alpha` sum_j relu(g_j (w_j - broadcast_j)), with g the previous global
    pseudo-gradient: (previous - current broadcast model) / `eta`. At the broadcast model, where
    relu has its kink, its gradient is taken as 0. Only the ratio alpha / eta matters. A client
    sends d numbers and receives 2 d. The term costs no privacy: both models are released values,
    so g is post-processing.
    """

    broadcasts: ClassVar[int] = 2

    alpha: float = Field(0.1, ge=0)
    """Weight of the term."""
    eta: float = Field(1.0, gt=0)
    """Divisor of the pseudo-gradient: only alpha / eta matters."""

    def init(self, params: Tensor) -> Memory:
        return {"previous": params.clone()}

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        yield from ()
        return {"pseudo_gradient": (memory["previous"] - params) / self.eta}

    def direction(
        self, grad: Tensor, w: Tensor, broadcast: Broadcast, state: Tensor | None
    ) -> Tensor:
        g = broadcast["pseudo_gradient"]
        against = g * (w - broadcast["params"]) > 0
        return grad + self.alpha * torch.where(against, g, 0.0)

    def conclude(
        self, broadcast: Broadcast, released: Tensor, memory: Memory, cohorts: Cohorts
    ) -> tuple[Tensor, Memory]:
        return released, {"previous": broadcast["params"].clone()}
