"""q-FedAvg: clients with larger losses have more weight, to minimise sum_k F_k^(q+1) / (q+1).

Li, Sanjabi, Beirami & Smith 2020, "Fair resource allocation in federated learning", Algorithm 2.

With w the broadcast model, F_k client k's mean loss at w, d_k its update after E local epochs and L
the constant of smoothness, for which the paper takes 1 / lr:

    w  <-  w + sum_k F_k^q d_k / sum_k h_k,    h_k = F_k^q + q L F_k^(q-1) |d_k|^2

(the paper's Delta_k and h_k, both divided by L). With q = 0 it is FedAvg; the larger q, the closer
the objective is to the largest loss.
"""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, model_validator

from privfed.client.exchange import Broadcast
from privfed.client.objective import Cohorts, Measures, Memory, Objective, Work
from privfed.core.deferred import Tensor, torch
from privfed.core.vector import Layout

_SMALLEST = 1e-30
"""Smallest weight of a client with which float32 arithmetic is accurate."""


class QFedAvg(Objective):
    """q-FedAvg: clients with a large loss have more weight.

    A client sends d + 1 numbers: its update times (F / loss_cap)^q, and its term of the divisor. F
    is the mean loss over its examples at the broadcast model, clamped to [loss_floor, loss_cap].
    The ratio of the two sums is the paper's; the factor loss_cap^-q cancels.

    Under privacy both are bounded jointly: *one* clip over (weighted update, divisor_scale times
    the divisor's term), one release, one event. *Sensitivity*: the clip. A client's loss, weight
    and update depend on its own examples and the broadcast model; the proof needs no bound on them,
    since every row is clipped, and a non-finite row becomes zero. *Post-processing*: the quotient
    of the two released values. Its divisor is at least (loss_floor / loss_cap)^q, the smallest
    weight of a client, so noise cannot make it negative or tiny. Clipping scales a whole row, so it
    reduces a client's weight, but not its step. The effect of noise grows as losses fall below
    loss_cap: set loss_cap to the clients' initial loss.
    """

    measures: ClassVar[Measures] = "loss"

    q: float = Field(1.0, ge=0, le=20)
    """Exponent of the loss in a client's weight; 0 is FedAvg."""
    smoothness: float = Field(0.0, ge=0)
    """Smoothness constant L; 0 means 1 / client.lr, as in the paper."""
    loss_cap: float = Field(10.0, gt=0)
    """Upper bound on a client's loss."""
    loss_floor: float = Field(0.001, gt=0)
    """Lower bound on a client's loss."""
    divisor_scale: float = Field(0.1, gt=0)
    """Weight of the divisor's term relative to the update, under their joint clip."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.loss_floor > self.loss_cap:
            raise ValueError(
                f"loss_floor is {self.loss_floor:g}, but loss_cap is {self.loss_cap:g}; expected a "
                "loss_floor of at most loss_cap"
            )
        if self._least < _SMALLEST:
            raise ValueError(
                f"q is {self.q:g}, but the smallest weight is then (loss_floor / loss_cap)^q = "
                f"{self._least:g}, which is too small for float32; raise loss_floor, or lower "
                "loss_cap or q"
            )
        return self

    def layout(self, d: int) -> Layout:
        return Layout((("delta", d), ("divisor", 1)))

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        if work.measured is None:
            raise ValueError(
                "q-FedAvg needs each client's loss at the broadcast model, but got none"
            )
        loss = work.measured.clamp(self.loss_floor, self.loss_cap)
        weight = (loss / self.loss_cap) ** self.q
        delta = w - broadcast["params"]
        curved = self.q * self._smoothness(work.lr) * delta.square().sum(1, keepdim=True) / loss
        return torch.cat([weight * delta, self.divisor_scale * weight * (1 + curved)], 1), state

    def admitted(self, rows: Tensor) -> Tensor:
        """Raises each row's term of the divisor to at least that of a loss of loss_floor."""
        least = self.divisor_scale * self._least * (1 - 1e-6)  # for float32's rounding
        return torch.cat([rows[:, :-1], rows[:, -1:].clamp(min=least)], dim=1)

    def conclude(
        self, broadcast: Broadcast, released: Tensor, memory: Memory, cohorts: Cohorts
    ) -> tuple[Tensor, Memory]:
        divisor = released[-1] / self.divisor_scale
        return released[:-1] / divisor.clamp(min=self._least), memory

    @property
    def _least(self) -> float:
        """Smallest possible weight of a client, (loss_floor / loss_cap)^q."""
        return float((self.loss_floor / self.loss_cap) ** self.q)

    def _smoothness(self, lr: float) -> float:
        return self.smoothness or 1 / max(lr, 1e-30)
