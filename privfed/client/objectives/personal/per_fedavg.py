"""Per-FedAvg: a model that performs well after one adaptation step of each client.

Source: Fallah, Mokhtari & Ozdaglar 2020, "Personalized federated learning with theoretical
guarantees: a model-agnostic meta-learning approach", Algorithm 1 and section 5.

The objective is the mean of F_k(w) = f_k(w - a grad f_k(w)). With independent batches D, D' and D''
a local step is

    u <- w - a grad f_k(w; D)
    w <- w - lr (I - a Hessian f_k(w; D'')) g,    g = grad f_k(u; D')

The first-order variant (FO) omits the Hessian; the Hessian-free one (HF) replaces its product with
g by the difference (grad f_k(w + s g; D'') - grad f_k(w - s g; D'')) / (2 s). Each of these batches
takes one local step, so one step of the paper takes two (FO) or three (HF) local steps. Local steps
after the last complete step of the paper have no effect.

Reptile (Nichol, Achiam & Schulman 2018) is not a separate objective: its outer step, x + e (mean of
w - x) after k local steps, is FedAvg with `client.steps = k` and `server.lr = e`.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from privfed.client.descent import Anchor, LocalStep
from privfed.client.exchange import Broadcast
from privfed.client.objective import Objective, Work
from privfed.core.deferred import Tensor, torch


class PerFedAvg(Objective):
    """Per-FedAvg, first-order: a model that each client adapts by one step on its data.

    A client sends d numbers and receives d. Each step of the paper takes two local steps: a client
    that takes only one local step sends an update of zero. Under privacy a round costs the same as
    FedAvg's: one vector, clipped like an update. A client does not send its adapted model.
    """

    inner_lr: float = Field(0.1, gt=0)
    """Learning rate a of a client's adaptation step."""

    def carry(self, broadcast: Broadcast, state: Tensor | None) -> Tensor:
        return broadcast["params"]

    def along(self, step: LocalStep, broadcast: Broadcast) -> tuple[Tensor, Tensor | None]:
        base = _carried(step.carried)
        if step.number % 2 == 0:
            return _towards(base - self.inner_lr * step.grad, step), base
        after = base - step.lr * step.grad
        return _towards(after, step), after

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        d = w.shape[1]
        return _carried(work.carried)[:, :d] - broadcast["params"], state


class HessianFree(PerFedAvg):
    """Per-FedAvg, Hessian-free: a model that each client adapts by one step on its data.

    A client sends d numbers and receives d. Each step of the paper takes three local steps of two
    gradients each. Under privacy a round costs the same as FedAvg's: one vector, clipped like an
    update.
    """

    anchored: ClassVar[Anchor] = "batch"

    difference: float = Field(0.001, gt=0)
    """Step s of the finite difference, in multiples of the gradient g."""

    def carry(self, broadcast: Broadcast, state: Tensor | None) -> Tensor:
        params = broadcast["params"]
        return torch.cat([params, torch.zeros_like(params)])

    def anchor(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, carried: Tensor | None
    ) -> Tensor:
        base, gradient = _carried(carried).chunk(2, dim=1)
        return base - self.difference * gradient

    def along(self, step: LocalStep, broadcast: Broadcast) -> tuple[Tensor, Tensor | None]:
        base, gradient = _carried(step.carried).chunk(2, dim=1)
        if step.number % 3 == 0:
            return _towards(base - self.inner_lr * step.grad, step), step.carried
        if step.number % 3 == 1:
            ahead = base + self.difference * step.grad
            return _towards(ahead, step), torch.cat([base, step.grad], dim=1)
        product = (step.grad - _carried(step.anchor)) / (2 * self.difference)
        after = base - step.lr * (gradient - self.inner_lr * product)
        return _towards(after, step), torch.cat([after, gradient], dim=1)


def _towards(target: Tensor, step: LocalStep) -> Tensor:
    """Returns the direction `[c, d]` whose step ends at `target` `[c, d]`; zero if lr is 0."""
    return (step.w - target) / step.lr if step.lr else torch.zeros_like(step.w)


def _carried(carried: Tensor | None) -> Tensor:
    if carried is None:
        raise ValueError("Per-FedAvg needs the vectors carried between steps, but got none")
    return carried
