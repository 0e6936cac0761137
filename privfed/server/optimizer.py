"""What a server optimizer is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Protocol

from pydantic import Field
from torch import Tensor

from privfed.parts import Part, only

State = Mapping[str, Tensor]
"""Public: it lies in the checkpoint."""


class ServerOptimizer(Protocol):
    """Two pure functions over the model `[d]`."""

    def init(self, params: Tensor) -> State: ...

    def step(self, params: Tensor, delta: Tensor, state: State) -> tuple[Tensor, State]:
        """The next model and state, from the released aggregate `delta` `[d]`."""
        ...


class WithRate(Part):
    """The keys that every server optimizer has."""

    lr: float = Field(1.0, ge=0)
    schedule: Annotated[str, only("constant", "remove the key")] = "constant"
