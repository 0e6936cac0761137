"""Personal models next to the global one: Ditto and APFL.

Ditto: a personal model regularised towards the global one (Li, Hu, Beirami & Smith 2021, "Ditto:
fair and robust federated learning through personalization", Algorithm 1, whose solver of the global
problem is FedAvg).

With x the broadcast model and v_k the personal model of client k, each local step is on one batch

    w   <- w - lr grad f_k(w)                                 from w = x; it sends w - x
    v_k <- v_k - r lr (grad f_k(v_k) + lambda (v_k - x))

In the paper all v_k begin at the model of round 1; here a new client begins at the broadcast model,
which is the same if all clients participate in round 1.

APFL: a mixture of a local and the global model for each client (Deng, Kamani & Mahdavi 2020,
"Adaptive personalized federated learning", Algorithm 1 and equation 10).

With x the broadcast model, v_k and alpha_k the state of client k, and m = alpha_k v_k + (1 -
alpha_k) w its mixture, each local step is on one batch

    w       <- w - lr grad f_k(w)                        from w = x; it sends w - x
    v_k     <- v_k - lr alpha_k grad f_k(m)              the gradient by v_k
    alpha_k <- alpha_k - lr <v_k - w, grad f_k(m)>       at the first step of a round, if adaptive

Right-hand sides are values before the step, and alpha_k is clamped to [0, 1]. A new client's v_k is
the broadcast model.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from privfed.client.descent import Anchor, LocalStep
from privfed.client.exchange import Broadcast
from privfed.client.objective import Objective, Work
from privfed.core.deferred import Tensor, torch


class WithPersonalModel(Objective):
    """FedAvg whose clients also update a state (their personal model) that they never send.

    Under privacy a round is charged like FedAvg's: w, and therefore the row, depends only on the
    broadcast model, the client's examples and its random numbers, not on its state. The state costs
    no privacy while it stays with the client; no epsilon covers a published state. Subclasses step
    along the gradient at w, and update the state by the gradient of the same batch at their
    `anchor`.
    """

    keeps: ClassVar[int] = 1
    anchored: ClassVar[Anchor] = "batch"

    @property
    def sums_states(self) -> bool:
        return False

    def initial_client_state(self, broadcast: Broadcast) -> Tensor:
        return broadcast["params"]

    def carry(self, broadcast: Broadcast, state: Tensor | None) -> Tensor:
        return self.initial_client_state(broadcast) if state is None else state

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        return w - broadcast["params"], work.carried


class Ditto(WithPersonalModel):
    """Ditto: each client keeps a personal model, pulled towards the global one.

    A client keeps d numbers, sends d (FedAvg's update) and receives d; a step takes two gradients
    of one batch. With strength 0 a personal model is trained on its client's examples only.

    Under privacy a round is charged like FedAvg's (`WithPersonalModel`): no row depends on the
    state. A personal model costs no privacy while it stays with the client; no epsilon covers a
    published one.
    """

    strength: float = Field(0.1, ge=0)
    """Weight lambda of the pull of a personal model towards the global one."""
    personal_rate: float = Field(1.0, gt=0)
    """Learning rate r of personal models, in multiples of client.lr."""

    def anchor(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, carried: Tensor | None
    ) -> Tensor:
        return _personal(carried)

    def along(self, step: LocalStep, broadcast: Broadcast) -> tuple[Tensor, Tensor | None]:
        v, rate = _personal(step.carried), step.lr * self.personal_rate
        pulled = _personal(step.anchor) + self.strength * (v - broadcast["params"])
        return step.grad, v - rate * pulled

    def personal(
        self, broadcast: Broadcast, state: Tensor | None, measured: Tensor | None
    ) -> Tensor:
        return self.carry(broadcast, state)


def _personal(carried: Tensor | None) -> Tensor:
    if carried is None:
        raise ValueError("Ditto needs each client's personal model, and the gradient there")
    return carried


class Apfl(WithPersonalModel):
    """APFL: each client mixes the global model with its own model.

    A client keeps d + 1 numbers, sends d (FedAvg's update) and receives d; a step takes two
    gradients of one batch. With alpha = 0 the mixture is the global model; with alpha = 1 it is a
    model trained on the client's examples only.

    Under privacy a round is charged like FedAvg's (`WithPersonalModel`): no row depends on the
    state. A mixture costs no privacy while it stays with the client; no epsilon covers a published
    one.
    """

    alpha: float = Field(0.5, ge=0, le=1)
    """Initial weight of a client's own model."""
    adaptive: bool = False
    """Whether each client adapts its weight by gradient descent on its loss."""

    def state_length(self, d: int) -> int:
        return d + 1

    def initial_client_state(self, broadcast: Broadcast) -> Tensor:
        params = broadcast["params"]
        return torch.cat([params, params.new_full((1,), self.alpha)])

    def anchor(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, carried: Tensor | None
    ) -> Tensor:
        return _mixture(carried, w)

    def along(self, step: LocalStep, broadcast: Broadcast) -> tuple[Tensor, Tensor | None]:
        v, alpha = _parts(step.carried)
        if step.anchor is None:
            raise ValueError("APFL needs the gradient at each client's mixture")
        after = alpha
        if self.adaptive and step.number == 0:
            slope = ((v - step.w) * step.anchor).sum(1, keepdim=True)
            after = (alpha - step.lr * slope).clamp(0.0, 1.0)
        return step.grad, torch.cat([v - step.lr * alpha * step.anchor, after], dim=1)

    def personal(
        self, broadcast: Broadcast, state: Tensor | None, measured: Tensor | None
    ) -> Tensor:
        carried = self.carry(broadcast, state)
        return _mixture(carried.view(-1, carried.shape[-1]), broadcast["params"])


def _parts(carried: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns clients' own models v `[c, d]`, and the weights alpha `[c, 1]` of these."""
    if carried is None:
        raise ValueError("APFL needs each client's own model and its weight")
    return carried[:, :-1], carried[:, -1:]


def _mixture(carried: Tensor | None, w: Tensor) -> Tensor:
    """Returns mixtures `[c, d]` of clients' own models with the models w `[c, d]`."""
    v, alpha = _parts(carried)
    return alpha * v + (1 - alpha) * w
