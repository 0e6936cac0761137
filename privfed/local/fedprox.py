"""FedProx: local models are kept near the broadcast one (Li et al. 2020, Algorithm 2)."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from privfed.local.objective import Broadcast
from privfed.local.sgd import Sgd


class FedProx(Sgd):
    """The local loss gains mu / 2 |w - broadcast|^2, its gradient mu (w - broadcast).

    With mu = 0 it is FedAvg. A client sends d numbers. Under privacy the term costs nothing: a
    client adds it itself, and it holds no other's data. The paper's heuristic that adapts mu reads
    the training loss, which would have to be charged; it is not here.
    """

    mu: float = Field(0.01, ge=0)

    def direction(
        self, grad: Tensor, w: Tensor, broadcast: Broadcast, own: Tensor | None
    ) -> Tensor:
        return grad + self.mu * (w - broadcast["params"])
