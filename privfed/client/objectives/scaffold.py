"""SCAFFOLD: local gradients corrected by control variates.

Source: Karimireddy, Kale, Mohri, Reddi, Stich & Suresh 2020, Algorithm 1, Option II; as a baseline
in Reddi et al. 2021, Algorithm 6.

With x the broadcast model, c the server's control variate and c_k client k's:

    w   <- w - lr (grad f_k(w) - c_k + c),   K local steps, K lr > 0
    c_k <- c_k - c + (x - w) / (K lr)        afterwards: the mean of its uncorrected gradients
    c   <- mean of the c_k of all clients that have participated so far

A client that participates for the first time starts at c_k = c, so if no client returns, the model
is FedAvg's. The papers add |S| / N times the cohort's mean change of c_k to c (`published = true`;
|S| clients of N are in the cohort).
This agrees with the definition of c if all clients join in round 1. For clients that join later,
the initial value of c_k is never added to c, and the fixed point is not the optimum. Here a new
client's complete c_k is added, and the sum is divided by the expected number of clients that have
joined after t rounds: N (1 - (1 - q)^t) if rounds are sampled independently. A client without
examples takes no step, and sends and keeps zeros.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

from pydantic import Field

from privfed.client.exchange import Broadcast, Exchange
from privfed.client.objective import Cohorts, Memory, Objective, Work
from privfed.core.deferred import Tensor, torch
from privfed.core.vector import Layout


class Scaffold(Objective):
    """SCAFFOLD: local steps corrected by control variates, for clients that return.

    A client keeps d numbers, sends 2 d (its update and the change of its control variate) and
    receives 2 d. Under privacy the two are bounded jointly: one clip over (update, control_scale *
    change), one release, one event. Client states cost no additional privacy
    (`privfed.client.client_states`). However, c accumulates the noise of all rounds, and lacks what
    clipping removes from changes: expect a smaller benefit than without privacy.
    """

    keeps: ClassVar[int] = 1
    broadcasts: ClassVar[int] = 2

    control_scale: float = Field(0.1, gt=0)
    """Weight of the control variate's change relative to the update, under their joint clip."""
    published: bool = False
    """Whether c is updated as in the papers, also for new clients: by the mean change of c_k times
    the fraction of clients in the cohort.
    """

    def layout(self, d: int) -> Layout:
        return Layout((("delta", d), ("control", d)))

    def init(self, params: Tensor) -> Memory:
        return {
            "control": torch.zeros_like(params),
            "sum": torch.zeros_like(params),
            "rounds": torch.zeros((), dtype=torch.int64),
        }

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        yield from ()
        return {"control": memory["control"]}

    def initial_client_state(self, broadcast: Broadcast) -> Tensor:
        return broadcast["control"]

    def direction(
        self, grad: Tensor, w: Tensor, broadcast: Broadcast, state: Tensor | None
    ) -> Tensor:
        return grad - _state(state) + broadcast["control"]

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        before = _state(state)
        known = (
            before if work.returning is None or self.published else before * work.returning[:, None]
        )
        moved = (work.steps * work.lr)[:, None]
        mean = before - broadcast["control"] + (broadcast["params"] - w) / moved.clamp(min=1e-30)
        after = torch.where(moved > 0, mean, known)  # without a step there is no gradient
        change = self.control_scale * (after - known)
        return torch.cat([w - broadcast["params"], change], dim=1), after

    def conclude(
        self, broadcast: Broadcast, released: Tensor, memory: Memory, cohorts: Cohorts
    ) -> tuple[Tensor, Memory]:
        layout = self.layout(len(broadcast["params"]))
        change = layout.view(released, "control") * cohorts.size / self.control_scale
        total, rounds = memory["sum"] + change, memory["rounds"] + 1
        joined = cohorts.clients if self.published else cohorts.joined(int(rounds))
        now = {"control": total / joined, "sum": total, "rounds": rounds}
        return layout.view(released, "delta"), now


def _state(state: Tensor | None) -> Tensor:
    if state is None:
        raise ValueError("SCAFFOLD needs each client's control variate, but got none")
    return state
