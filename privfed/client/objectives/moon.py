"""MOON: model-contrastive federated learning (Li, He & Song 2021, equations 3 and 4)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from privfed.client.descent import Batch
from privfed.client.exchange import Broadcast
from privfed.client.objective import Objective, Work
from privfed.core.deferred import F, Tensor, torch


class Moon(Objective):
    """MOON: pulls representations towards the global model's, away from the last local model's.

    The loss of an example has an additional term, mu times
        -log( exp(s(z, z_glob) / t) / (exp(s(z, z_glob) / t) + exp(s(z, z_prev) / t)) ),

    with s the cosine similarity, and z, z_glob, z_prev the example's representations under the
    local model, the broadcast model and the client's last local model. A representation is the
    input of the last layer with parameters. (The paper adds a projection head before that layer; it
    can be a part of the model.) A client keeps its last local model, d numbers; one without it uses
    the broadcast model, for which the term's gradient is zero. A client sends d numbers and
    receives d.

    Under privacy a round is charged like FedAvg's: a client's state depends on its own data and
    released values, and affects only its own clipped row.
    """

    keeps: ClassVar[int] = 1
    sums_states: ClassVar[bool] = False
    reads_features: ClassVar[bool] = True

    mu: float = Field(1.0, ge=0)
    """Weight of the contrastive term; 0 is FedAvg."""
    temperature: float = Field(0.5, gt=0)
    """Temperature t of the similarities."""

    def initial_client_state(self, broadcast: Broadcast) -> Tensor:
        return broadcast["params"]

    def contrasts(self, broadcast: Broadcast, state: Tensor | None) -> Tensor:
        params = broadcast["params"]
        if state is None:
            return torch.stack([params, params])
        return torch.stack([params.expand_as(state), state], dim=1)

    def losses(self, batch: Batch) -> Tensor:
        if batch.features is None or batch.others is None:
            raise ValueError("MOON needs representations under three models")
        similar = F.cosine_similarity(batch.features, batch.others, dim=-1) / self.temperature
        term = F.softplus(similar[1] - similar[0])
        return super().losses(batch) + self.mu * term

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        return w - broadcast["params"], None if state is None else w
