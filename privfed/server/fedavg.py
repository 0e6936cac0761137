"""FedAvg with a server learning rate (Reddi et al. 2021, Algorithm 1 with SGD; lr = 1 is McMahan
et al. 2017), and with server momentum (Hsu, Qi & Brown 2019, section 4).
"""

from __future__ import annotations

from pydantic import Field

from privfed.core.deferred import Tensor, torch
from privfed.server.optimizer import State, WithRate


class FedAvgM(WithRate):
    """FedAvg with server momentum.

    m = momentum * m + delta; params + lr * m. With momentum 0 it is FedAvg.
    """

    lr: float = Field(0.5, ge=0)
    """The server's learning rate."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """The server's momentum; 0 is FedAvg."""

    @property
    def plain(self) -> bool:
        """It is at rate 1 without momentum, where no subclass steps otherwise."""
        return (self.lr, self.momentum) == (1.0, 0.0) and type(self).step is FedAvgM.step

    def init(self, params: Tensor) -> State:
        return {"momentum": torch.zeros_like(params)}

    def step(self, params: Tensor, delta: Tensor, state: State) -> tuple[Tensor, State]:
        momentum = self.momentum * state["momentum"] + delta
        return params + self.lr * momentum, {"momentum": momentum}


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
