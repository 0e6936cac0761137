"""The interface of server optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol, Self

from pydantic import Field

from privfed.core.deferred import Tensor
from privfed.core.parts import Part

State = Mapping[str, "Tensor"]
"""State of an optimizer, by name. It is public, and stored in the checkpoint."""


class ServerOptimizer(Protocol):
    """Updates the model `[d]` with each round's aggregate; its methods are pure functions."""

    in_client_rates: ClassVar[bool]
    """Whether deltas are divided by the factor of the client schedule in their round, and the
    server's learning rate is multiplied by that factor.
    """

    @property
    def plain(self) -> bool:
        """Whether a step adds the unchanged aggregate to the model: FedAvg at rate 1."""

    def init(self, params: Tensor) -> State:
        """Returns the state before the first round, for the model `params` `[d]`."""

    def step(self, params: Tensor, delta: Tensor, state: State) -> tuple[Tensor, State]:
        """Returns the next model and state.

        Args:
          params: the current model, shape [d].
          delta: the released aggregate, shape [d]: the average update, which is the negative
            pseudo-gradient.
          state: the optimizer's state.

        Returns:
          The next model [d] and the next state.
        """

    def at(self, factor: float) -> ServerOptimizer:
        """Returns the same optimizer with its learning rate multiplied by `factor`."""


class WithRate(Part):
    """Base class of server optimizers with a learning rate `lr`."""

    in_client_rates: ClassVar[bool] = False

    lr: float = Field(1.0, ge=0)
    """The server's learning rate."""

    @property
    def plain(self) -> bool:
        """Whether a step adds the unchanged aggregate to the model; False unless overridden."""
        return False

    def at(self, factor: float) -> Self:
        return self.model_copy(update={"lr": self.lr * factor})


class NoStep(WithRate):
    """A server that does not change the model."""

    def init(self, params: Tensor) -> State:
        return {}

    def step(self, params: Tensor, delta: Tensor, state: State) -> tuple[Tensor, State]:
        return params, state
