"""Mime and MimeLite: clients mimic the server's momentum.

Source: Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich & Suresh 2021, "Breaking the centralized
barrier", Algorithm 1, with SGD with momentum.

With x the broadcast model, m the server's momentum, f_k a client's loss and zeta a batch:

    Mime:      w <- w - lr ((1 - beta) (grad f_k(w; zeta) - grad f_k(x; zeta) + c) + beta m)
    MimeLite:  w <- w - lr ((1 - beta)  grad f_k(w; zeta)                          + beta m)
    both:      m <- beta m + (1 - beta) c,   c the cohort's mean of grad f_k(x) over all examples

The momentum is fixed during a round: local steps do not change it. In the paper the next model is
the clients' average: `server.optimizer = "fedavg"` at rate 1. m is computed from released values,
so it is post-processing.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

from pydantic import Field

from privfed.client.descent import Anchor
from privfed.client.exchange import Broadcast, Exchange
from privfed.client.objective import Cohorts, Memory, Objective, ServerStep, Work
from privfed.core.deferred import Tensor, torch
from privfed.core.vector import Layout


class _Mimicking(Objective):
    server_step: ClassVar[ServerStep] = "plain"

    beta: float = Field(0.9, ge=0, lt=1)
    """Momentum coefficient beta."""

    def init(self, params: Tensor) -> Memory:
        return {"momentum": torch.zeros_like(params)}

    def _next(self, memory: Memory, gradient: Tensor) -> Memory:
        return {"momentum": self.beta * memory["momentum"] + (1 - self.beta) * gradient}


class Mime(_Mimicking):
    """Mime: momentum and a variance-reduced gradient, from two exchanges.

    The first exchange releases the cohort's mean gradient c; the second is training. In each round
    a client sends 2 d numbers and receives 4 d. Under privacy both exchanges use one cohort, each
    row is clipped to the same bound (gradients times `gradient_scale`, which is divided out
    afterwards), and the round is one event: Poisson(q, Gaussian(z / sqrt(2))).
    """

    gradient_scale: float = Field(1.0, gt=0)
    """Factor of gradients before clipping, divided out afterwards."""
    exchanges: ClassVar[int] = 2
    broadcasts: ClassVar[int] = 3
    anchored: ClassVar[Anchor] = "batch"

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        layout, scale = self.layout(len(params)), self.gradient_scale
        gradient = yield Exchange("gradient", {"params": params}, layout, scale)
        return {"gradient": gradient / scale, "momentum": memory["momentum"]}

    def direction(
        self, grad: Tensor, w: Tensor, broadcast: Broadcast, state: Tensor | None
    ) -> Tensor:
        if state is None:
            raise ValueError("Mime needs the batch's gradient at the broadcast model")
        reduced = grad - state + broadcast["gradient"]
        return (1 - self.beta) * reduced + self.beta * broadcast["momentum"]

    def conclude(
        self, broadcast: Broadcast, released: Tensor, memory: Memory, cohorts: Cohorts
    ) -> tuple[Tensor, Memory]:
        return released, self._next(memory, broadcast["gradient"])


class MimeLite(_Mimicking):
    """MimeLite: momentum only, from one exchange of two vectors.

    A client sends its update and its gradient at the broadcast model, 2 d numbers, and receives
    2 d. Under privacy the two are bounded jointly: one clip over (update, gradient_scale *
    gradient), one release, one event. With gradient_scale = client.lr the two have similar norms.
    """

    gradient_scale: float = Field(0.1, gt=0)
    """Weight of the gradient relative to the update, under their joint clip."""
    broadcasts: ClassVar[int] = 2
    anchored: ClassVar[Anchor] = "all"

    def layout(self, d: int) -> Layout:
        return Layout((("delta", d), ("gradient", d)))

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        yield from ()
        return {"momentum": memory["momentum"]}

    def direction(
        self, grad: Tensor, w: Tensor, broadcast: Broadcast, state: Tensor | None
    ) -> Tensor:
        return (1 - self.beta) * grad + self.beta * broadcast["momentum"]

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        if state is None:
            raise ValueError("MimeLite needs each client's gradient at the broadcast model")
        return torch.cat([w - broadcast["params"], self.gradient_scale * state], dim=1), None

    def conclude(
        self, broadcast: Broadcast, released: Tensor, memory: Memory, cohorts: Cohorts
    ) -> tuple[Tensor, Memory]:
        layout = self.layout(len(broadcast["params"]))
        gradient = layout.view(released, "gradient") / self.gradient_scale
        return layout.view(released, "delta"), self._next(memory, gradient)
