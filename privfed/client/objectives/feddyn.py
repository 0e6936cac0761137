"""FedDyn: a dynamic regulariser that aligns local and global optima.

Source: Acar, Zhao, Matas, Mattina, Whatmough & Saligrama 2021, Algorithm 1. With all clients and
one exchange per round it is the primal-dual method FedPD (Zhang, Hong, Dhople, Yin & Liu 2021).

With x the broadcast model, h_k client k's accumulated gradient, and N the number of clients:

    client:  minimise f_k(w) - <h_k, w> + alpha / 2 |w - x|^2,  then  h_k <- h_k - alpha (w - x)
    server:  h <- h - alpha / N sum_k (w_k - x) over the cohort,  x <- mean of w_k - h / alpha

h is always the mean of all h_k. The server keeps s = -h / alpha.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from privfed.client.exchange import Broadcast
from privfed.client.objective import Cohorts, Memory, Objective, ServerStep, Work
from privfed.core.deferred import Tensor, torch


class FedDyn(Objective):
    """FedDyn (FedPD with full participation): a dynamic regulariser, for clients that return.

    A client keeps, sends and receives d numbers. The paper solves the local problem exactly; here
    it is solved approximately by the configured epochs of SGD. Under privacy the update is clipped
    as usual, and the server's correction s (`drift` in its memory), which it adds to every released
    update, is computed from releases and public constants. Client states cost no additional privacy
    (`privfed.client.client_states`). However, the noise of all rounds accumulates in s: expect a
    smaller benefit than without privacy.
    """

    keeps: ClassVar[int] = 1
    server_step: ClassVar[ServerStep] = "plain"

    alpha: float = Field(0.1, gt=0)
    """Weight of the regulariser."""

    def init(self, params: Tensor) -> Memory:
        return {"drift": torch.zeros_like(params)}

    def direction(
        self, grad: Tensor, w: Tensor, broadcast: Broadcast, state: Tensor | None
    ) -> Tensor:
        return grad - _state(state) + self.alpha * (w - broadcast["params"])

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        delta = w - broadcast["params"]
        return delta, _state(state) - self.alpha * delta

    def conclude(
        self, broadcast: Broadcast, released: Tensor, memory: Memory, cohorts: Cohorts
    ) -> tuple[Tensor, Memory]:
        drift = memory["drift"] + released * cohorts.size / cohorts.clients
        return released + drift, {"drift": drift}


def _state(state: Tensor | None) -> Tensor:
    if state is None:
        raise ValueError("FedDyn needs each client's state, but got none")
    return state
