"""What a server optimizer is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol, Self

from pydantic import Field

from privfed.core.deferred import Tensor
from privfed.core.parts import Part

State = Mapping[str, "Tensor"]
"""What an optimizer remembers, by name. It is public: it lies in the checkpoint."""


class ServerOptimizer(Protocol):
    """A rule that moves the model `[d]` by each round's aggregate: two pure functions."""

    in_client_rates: ClassVar[bool]
    """Whether it counts in units of the clients' rate of each round: its deltas are divided by the
    factor of their schedule, and its rate is multiplied by it."""

    @property
    def plain(self) -> bool:
        """Whether a step adds the delta to the model as it is: FedAvg at rate 1."""
        ...

    def init(self, params: Tensor) -> State:
        """The state before the first round, for the model `params` `[d]`."""
        ...

    def step(self, params: Tensor, delta: Tensor, state: State) -> tuple[Tensor, State]:
        """The next model `[d]` and state.

        `delta` `[d]` is the released aggregate, the average update: the negative pseudo-gradient.
        """
        ...

    def at(self, factor: float) -> ServerOptimizer:
        """The same optimizer with its learning rate multiplied by `factor`."""
        ...


class WithRate(Part):
    """The base of server optimizers, which all have a learning rate `lr`."""

    in_client_rates: ClassVar[bool] = False

    lr: float = Field(1.0, ge=0)
    """The server's learning rate."""

    @property
    def plain(self) -> bool:
        """No step is, unless a subclass says otherwise."""
        return False

    def at(self, factor: float) -> Self:
        return self.model_copy(update={"lr": self.lr * factor})


class Unmoved(WithRate):
    """No step."""

    def init(self, params: Tensor) -> State:
        return {}

    def step(self, params: Tensor, delta: Tensor, state: State) -> tuple[Tensor, State]:
        return params, state
