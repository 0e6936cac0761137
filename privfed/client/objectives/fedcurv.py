"""FedCurv: penalises changes where other clients' losses are curved.

Source: Shoham, Avidor, Keren, Israel, Benditkis, Mor-Yosef & Zeitak 2019, "Overcoming forgetting in
federated learning on non-IID data", section 3.

With I_j the diagonal of the Fisher information at client j's last local model w_j, client k's loss
gains

    lambda sum_{j != k} (w - w_j)^T diag(I_j) (w - w_j),

whose gradient is 2 lambda ((F - I_k) w - (V - I_k w_k)) with F = sum_j I_j and V = sum_j I_j w_j.
I_j is empirical: the mean over j's examples of the squared gradient of its loss.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

from pydantic import Field

from privfed.client.exchange import Broadcast, Exchange
from privfed.client.objective import Cohorts, Measures, Memory, Objective, Work
from privfed.core.deferred import Tensor, torch
from privfed.core.vector import Layout


class FedCurv(Objective):
    """FedCurv: elastic weight consolidation, for clients that return.

    A client keeps 2 d numbers and sends 3 d: its update, and the changes of its Fisher information
    I_k and of I_k w_k. It receives 3 d. The sums are over all clients that have participated, each
    with its latest values. Refused under privacy.
    """

    keeps: ClassVar[int] = 2
    broadcasts: ClassVar[int] = 3
    measures: ClassVar[Measures] = "fisher"
    unproven: ClassVar[str] = (
        "it sums clients' Fisher information, squares of gradients without a proven sensitivity"
    )

    strength: float = Field(0.01, ge=0)
    """Weight lambda of the penalty."""

    def layout(self, d: int) -> Layout:
        return Layout((("delta", d), ("fisher", d), ("weighted", d)))

    def init(self, params: Tensor) -> Memory:
        return {"fisher": torch.zeros_like(params), "weighted": torch.zeros_like(params)}

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        yield from ()
        return dict(memory)

    def direction(
        self, grad: Tensor, w: Tensor, broadcast: Broadcast, state: Tensor | None
    ) -> Tensor:
        if state is None:
            raise ValueError("FedCurv needs each client's own Fisher information, but got none")
        fisher, weighted = state.chunk(2, dim=1)
        others = (broadcast["fisher"] - fisher) * w - (broadcast["weighted"] - weighted)
        return grad + 2 * self.strength * others

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        if state is None or work.measured is None:
            raise ValueError("FedCurv needs each client's old and new Fisher information")
        now = torch.cat([work.measured, work.measured * w], dim=1)
        return torch.cat([w - broadcast["params"], now - state], dim=1), now

    def conclude(
        self, broadcast: Broadcast, released: Tensor, memory: Memory, cohorts: Cohorts
    ) -> tuple[Tensor, Memory]:
        layout = self.layout(len(broadcast["params"]))
        sums = {k: memory[k] + layout.view(released, k) * cohorts.size for k in memory}
        return layout.view(released, "delta"), sums
