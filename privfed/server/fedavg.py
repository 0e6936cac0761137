"""FedAvg with a server learning rate (Reddi et al. 2021, Algorithm 1 with SGD; lr = 1 is McMahan
et al. 2017).
"""

from __future__ import annotations

from privfed.core.deferred import Tensor
from privfed.server.optimizer import State, WithRate


class FedAvg(WithRate):
    """The average update, times the server's rate: params + lr * delta."""

    @property
    def plain(self) -> bool:
        """It is at rate 1, where no subclass steps otherwise."""
        return self.lr == 1.0 and type(self).step is FedAvg.step

    def init(self, params: Tensor) -> State:
        return {}

    def step(self, params: Tensor, delta: Tensor, state: State) -> tuple[Tensor, State]:
        return params + self.lr * delta, {}
