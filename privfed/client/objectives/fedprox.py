"""FedProx: keeps local models near the broadcast model (Li et al. 2020, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

from pydantic import Field

from privfed.client.exchange import Broadcast, Exchange
from privfed.client.objective import Cohorts, Measures, Memory, Objective, Work
from privfed.core.deferred import Tensor, torch
from privfed.core.vector import Layout


class FedProx(Objective):
    """FedProx: the local loss has the additional term mu / 2 |w - broadcast|^2.

    Its direction is gradient + mu (w - broadcast); with mu = 0 it is FedAvg. A client sends d
    numbers and receives d. The term costs no privacy: it depends on the released model and the
    client's own model only.
    """

    mu: float = Field(0.01, ge=0)
    """Weight of the proximal term; 0 is FedAvg."""

    def direction(
        self, grad: Tensor, w: Tensor, broadcast: Broadcast, state: Tensor | None
    ) -> Tensor:
        return grad + self.mu * (w - broadcast["params"])


class AdaptiveFedProx(FedProx):
    """FedProx with mu adapted to the training loss, by the heuristic of the paper's section 5.3.3.

    mu grows by `step` if the cohort's mean loss at the broadcast model rose since the previous
    round. It shrinks by `step`, but not below 0, after `patience` consecutive falls. A client sends
    d + 2 numbers (also its loss, and 1 if it has examples) and receives d + 1. A round without any
    loss does not change mu. Refused under privacy.
    """

    measures: ClassVar[Measures] = "loss"
    unproven: ClassVar[str] = (
        "mu depends on clients' training loss, which is not released unless it is charged"
    )

    mu: float = Field(0.0, ge=0)
    """Initial weight of the proximal term."""
    step: float = Field(0.1, gt=0)
    """Amount by which the weight grows or shrinks."""
    patience: int = Field(5, ge=1)
    """Number of consecutive falls of the loss after which the weight shrinks."""

    def layout(self, d: int) -> Layout:
        return Layout((("delta", d), ("loss", 1), ("holds", 1)))

    def init(self, params: Tensor) -> Memory:
        nothing = params.new_zeros(())
        return {
            "mu": params.new_tensor(self.mu),
            "loss": nothing,
            "falls": nothing,
            "rounds": nothing,
        }

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        yield from ()
        return {"mu": memory["mu"]}

    def direction(
        self, grad: Tensor, w: Tensor, broadcast: Broadcast, state: Tensor | None
    ) -> Tensor:
        return grad + broadcast["mu"] * (w - broadcast["params"])

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        if work.measured is None:
            raise ValueError("adaptive FedProx needs each client's loss, but got none")
        holds = (work.steps > 0).to(w)[:, None]
        return torch.cat([w - broadcast["params"], holds * work.measured, holds], dim=1), state

    def admitted(self, rows: Tensor) -> Tensor:
        return torch.cat([rows[:, :-1], rows[:, -1:].clamp(0.0, 1.0)], dim=1)

    def conclude(
        self, broadcast: Broadcast, released: Tensor, memory: Memory, cohorts: Cohorts
    ) -> tuple[Tensor, Memory]:
        update, loss, holds = released[:-2], released[-2], released[-1]
        if not bool(holds > 0):
            return update, memory
        loss, mu, falls = loss / holds, memory["mu"], memory["falls"]
        if bool(memory["rounds"] > 0):
            rose, fell = loss > memory["loss"], loss < memory["loss"]
            falls = torch.where(fell, falls + 1, torch.where(rose, 0.0, falls))
            enough = falls >= self.patience
            mu = torch.where(rose, mu + self.step, torch.where(enough, mu - self.step, mu))
            falls = torch.where(enough, 0.0, falls)
        now = {"mu": mu.clamp(min=0), "loss": loss, "falls": falls, "rounds": memory["rounds"] + 1}
        return update, now
