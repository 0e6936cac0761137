"""What a server optimizer is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, Self

from pydantic import Field

from privfed.parts import Part

if TYPE_CHECKING:
    from torch import Tensor

State = Mapping[str, "Tensor"]
"""Public: it lies in the checkpoint."""


class ServerOptimizer(Protocol):
    """Two pure functions over the model `[d]`."""

    def init(self, params: Tensor) -> State: ...

    def step(self, params: Tensor, delta: Tensor, state: State) -> tuple[Tensor, State]:
        """The next model and state, from the released aggregate `delta` `[d]`."""
        ...

    def at(self, factor: float) -> ServerOptimizer:
        """The same with its rate multiplied by `factor`."""
        ...


class WithRate(Part):
    """The keys that every server optimizer has."""

    lr: float = Field(1.0, ge=0)

    def at(self, factor: float) -> Self:
        return self.model_copy(update={"lr": self.lr * factor})
