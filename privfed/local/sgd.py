"""Plain local SGD, the local objective of FedAvg (McMahan et al. 2017, Algorithm 1).

Other objectives are this one with a corrected gradient, or with something more broadcast.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

from torch import Tensor

from privfed.local.objective import Anchor, Broadcast, Exchange, Memory
from privfed.parts import Part
from privfed.vector import Layout


class Sgd(Part):
    """Plain local SGD.

    direction = gradient; a client sends delta = local - broadcast, d numbers.
    """

    stateful: ClassVar[bool] = False
    exchanges: ClassVar[int] = 1
    broadcasts: ClassVar[int] = 1
    anchored: ClassVar[Anchor] = ""
    unproven: ClassVar[str] = ""

    def layout(self, d: int) -> Layout:
        return Layout((("delta", d),))

    def init(self, params: Tensor) -> Memory:
        return {}

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        yield from ()
        return {}

    def direction(
        self, grad: Tensor, w: Tensor, broadcast: Broadcast, own: Tensor | None
    ) -> Tensor:
        return grad

    def message(
        self, w: Tensor, broadcast: Broadcast, own: Tensor | None, steps: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        return w - broadcast["params"], own

    def update(self, aggregate: Tensor) -> Tensor:
        return aggregate

    def remember(
        self, params: Tensor, aggregate: Tensor, memory: Memory, broadcast: Broadcast
    ) -> Memory:
        return memory
