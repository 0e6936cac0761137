"""The server in rounds that only measure: the model stays where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privfed.server.optimizer import State, WithRate

if TYPE_CHECKING:
    from torch import Tensor


class Unmoved(WithRate):
    """No step."""

    def init(self, params: Tensor) -> State:
        return {}

    def step(self, params: Tensor, delta: Tensor, state: State) -> tuple[Tensor, State]:
        return params, state
