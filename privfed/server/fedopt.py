"""FedAvg, FedAvgM, and the adaptive server optimizers FedAdagrad, FedYogi and FedAdam.

FedAvg with a server learning rate (Reddi et al. 2021, Algorithm 1 with SGD; lr = 1 is McMahan
et al. 2017), and with server momentum (Hsu, Qi & Brown 2019, section 4).

Adaptive server optimizers (Reddi et al. 2021, "Adaptive Federated Optimization", Algorithm 2).

    m_t = beta1 m_{t-1} + (1 - beta1) delta_t
    v_t = v_{t-1} + delta_t^2                                            (FedAdagrad)
        = v_{t-1} - (1 - beta2) delta_t^2 sign(v_{t-1} - delta_t^2)      (FedYogi)
        = beta2 v_{t-1} + (1 - beta2) delta_t^2                          (FedAdam)
    x_{t+1} = x_t + lr m_t / (sqrt(v_t) + tau)

from m_0 = 0 and v_0 = tau^2, coordinate by coordinate and without bias correction, as in that
paper. Server optimizers read released aggregates only, so under privacy they are post-processing
and cost nothing. Each client sends d numbers per round.
"""

from __future__ import annotations

from abc import abstractmethod

from pydantic import Field

from privfed.core.deferred import Tensor, torch
from privfed.server.optimizer import State, WithRate


class _Adaptive(WithRate):
    """Base class of the adaptive optimizers, which differ in the second moment v_t."""

    lr: float = Field(0.1, ge=0)
    """The server's learning rate."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """Momentum beta1."""
    tau: float = Field(1e-3, gt=0)
    """Constant added to the root of the second moment; the larger, the less adaptive."""

    def init(self, params: Tensor) -> State:
        return {
            "momentum": torch.zeros_like(params),
            "variance": torch.full_like(params, self.tau**2),
        }

    def step(self, params: Tensor, delta: Tensor, state: State) -> tuple[Tensor, State]:
        momentum = self.beta1 * state["momentum"] + (1 - self.beta1) * delta
        variance = self._variance(state["variance"], delta.square())
        moved = params + self.lr * momentum / (variance.sqrt() + self.tau)
        return moved, {"momentum": momentum, "variance": variance}

    @abstractmethod
    def _variance(self, variance: Tensor, squared: Tensor) -> Tensor:
        """Returns v_t, given v_{t-1} and delta_t^2."""


class FedAdagrad(_Adaptive):
    """Server Adagrad: steps are divided by the root of the sum of all squared updates."""

    beta1: float = Field(0.0, ge=0, lt=1)
    """Momentum beta1."""

    def _variance(self, variance: Tensor, squared: Tensor) -> Tensor:
        return variance + squared


class FedAdam(_Adaptive):
    """Server Adam: momentum divided by the root of a moving average of squared updates."""

    beta2: float = Field(0.99, ge=0, lt=1)
    """Decay rate of the second moment."""

    def _variance(self, variance: Tensor, squared: Tensor) -> Tensor:
        return self.beta2 * variance + (1 - self.beta2) * squared


class FedYogi(_Adaptive):
    """Server Yogi: like Adam, but v_t changes by at most (1 - beta2) times the squared update."""

    beta2: float = Field(0.99, ge=0, lt=1)
    """Decay rate of the second moment."""

    def _variance(self, variance: Tensor, squared: Tensor) -> Tensor:
        return variance - (1 - self.beta2) * squared * torch.sign(variance - squared)


class FedAvgM(WithRate):
    """FedAvg with server momentum.

    m <- momentum * m + delta; the next model is params + lr * m. With momentum 0 this is FedAvg.
    """

    lr: float = Field(0.5, ge=0)
    """The server's learning rate."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum; 0 is FedAvg."""

    @property
    def plain(self) -> bool:
        """Whether the rate is 1, without momentum, and no subclass overrides the step."""
        return (self.lr, self.momentum) == (1.0, 0.0) and type(self).step is FedAvgM.step

    def init(self, params: Tensor) -> State:
        return {"momentum": torch.zeros_like(params)}

    def step(self, params: Tensor, delta: Tensor, state: State) -> tuple[Tensor, State]:
        momentum = self.momentum * state["momentum"] + delta
        return params + self.lr * momentum, {"momentum": momentum}


class FedAvg(WithRate):
    """FedAvg: the next model is params + lr * delta, with delta the average update."""

    @property
    def plain(self) -> bool:
        """Whether the rate is 1, and no subclass overrides the step."""
        return self.lr == 1.0 and type(self).step is FedAvg.step

    def init(self, params: Tensor) -> State:
        return {}

    def step(self, params: Tensor, delta: Tensor, state: State) -> tuple[Tensor, State]:
        return params + self.lr * delta, {}
