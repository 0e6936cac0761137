"""Plain local SGD, the local objective of FedAvg (McMahan et al. 2017, Algorithm 1).

Other objectives are this one with a corrected gradient, or with something more broadcast.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

from privfed.client.exchange import Broadcast, Exchange
from privfed.client.objective import (
    Anchor,
    Cohorts,
    Grouping,
    LocalStep,
    Measures,
    Memory,
    ServerStep,
    Work,
)
from privfed.core.deferred import Tensor
from privfed.core.parts import Part
from privfed.core.vector import Layout


class Sgd(Part):
    """Plain local SGD.

    direction = gradient; a client sends delta = local - broadcast, d numbers.
    """

    keeps: ClassVar[int] = 0
    exchanges: ClassVar[int] = 1
    anchored: ClassVar[Anchor] = ""
    measures: ClassVar[Measures] = ""
    unproven: ClassVar[str] = ""
    server_step: ClassVar[ServerStep] = "any"

    @property
    def least_steps(self) -> int:
        return 0

    @property
    def broadcasts(self) -> int:
        return 1

    @property
    def grouping(self) -> Grouping | None:
        return None

    @property
    def plain(self) -> bool:
        """Whether steps go along the gradient alone, whatever a subclass inherits."""
        return type(self).direction is Sgd.direction and type(self).along is Sgd.along

    @property
    def sends_updates_alone(self) -> bool:
        return tuple(name for name, _ in self.layout(1).parts) == ("delta",)

    @property
    def sums_states(self) -> bool:
        """It does wherever clients keep anything, unless a subclass says otherwise."""
        return self.keeps > 0

    def state_length(self, d: int) -> int:
        return self.keeps * d

    def layout(self, d: int) -> Layout:
        return Layout((("delta", d),))

    def init(self, params: Tensor) -> Memory:
        return {}

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        yield from ()
        return {}

    def unseen(self, broadcast: Broadcast) -> Tensor:
        params = broadcast["params"]
        return params.new_zeros(self.state_length(len(params)))

    def origin(self, broadcast: Broadcast, state: Tensor | None, measured: Tensor | None) -> Tensor:
        return broadcast["params"]

    def carry(self, broadcast: Broadcast, state: Tensor | None) -> Tensor | None:
        return None

    def anchor(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, carried: Tensor | None
    ) -> Tensor:
        return broadcast["params"]

    def along(self, step: LocalStep, broadcast: Broadcast) -> tuple[Tensor, Tensor | None]:
        state = step.state if step.anchor is None else step.anchor
        return self.direction(step.grad, step.w, broadcast, state), step.carried

    def direction(
        self, grad: Tensor, w: Tensor, broadcast: Broadcast, state: Tensor | None
    ) -> Tensor:
        return grad

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        return w - broadcast["params"], state

    def admitted(self, rows: Tensor) -> Tensor:
        return rows

    def conclude(
        self, broadcast: Broadcast, released: Tensor, memory: Memory, cohorts: Cohorts
    ) -> tuple[Tensor, Memory]:
        return released, memory
