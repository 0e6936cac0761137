"""FedNova: normalised averaging for clients with different amounts of work.

Wang, Liu, Liang, Joshi & Poor 2020, "Tackling the objective inconsistency problem in heterogeneous
federated optimization", section 4, for plain local SGD.
"""

from __future__ import annotations

from typing import ClassVar

from privfed.client.exchange import Broadcast
from privfed.client.objective import Cohorts, Memory, Objective, Work
from privfed.core.deferred import Tensor, torch
from privfed.core.vector import Layout


class FedNova(Objective):
    """FedNova: averages updates per local step, times the effective number of steps.

    With tau_k the number of client k's local steps, it sends d + 2 numbers: delta_k / tau_k, tau_k,
    and 1 if tau_k > 0. The update is tau_eff sum_k p_k delta_k / tau_k with
    tau_eff = sum_k p_k tau_k, both over clients that took a step, with p_k their weights. With
    equal numbers of steps it is FedAvg. Refused under privacy: tau_k grows with a client's number
    of examples, without a bound.
    """

    unproven: ClassVar[str] = (
        "a client's number of local steps depends on its number of examples, and no bound on it "
        "is proved"
    )

    def layout(self, d: int) -> Layout:
        return Layout((("delta", d), ("steps", 1), ("holds", 1)))

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        taken = work.steps[:, None]
        mean = (w - broadcast["params"]) / taken.clamp(min=1)
        return torch.cat([mean, taken, (taken > 0).to(w)], dim=1), state

    def admitted(self, rows: Tensor) -> Tensor:
        steps, holds = rows[:, -2:-1].clamp(min=0.0), rows[:, -1:].clamp(0.0, 1.0)
        return torch.cat([rows[:, :-2], steps, holds], dim=1)

    def conclude(
        self, broadcast: Broadcast, released: Tensor, memory: Memory, cohorts: Cohorts
    ) -> tuple[Tensor, Memory]:
        mean, steps, holds = released[:-2], released[-2], released[-1]
        return mean * (steps / holds if bool(holds > 0) else 0.0), memory
