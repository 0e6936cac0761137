"""FedSplit: Peaceman-Rachford splitting.

Source: Pathak & Wainwright 2020, "FedSplit: an algorithmic framework for fast federated
optimization", Algorithm 1.

With x the broadcast model and z_k the state of client k, from z_k = x in round 1, and s > 0:

    client:  w   =  argmin f_k(w) + |w - (2 x - z_k)|^2 / (2 s),    z_k <- z_k + 2 (w - x)
    server:  x  <-  mean of z_k over all clients

At a fixed point, w = x for all clients, so z_k = x - s grad f_k(x). The mean of these is x, so the
mean of all gradients is zero. Except for the noise of batches, this also holds if the proximal
point is approximated by E epochs of SGD from x. In the paper all clients participate in every
round; a client that does not participate keeps its z_k, and the fixed point is the same. For a
client without examples, f_k = 0 and the proximal point is exact.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

from pydantic import Field

from privfed.client.exchange import Broadcast, Exchange
from privfed.client.objective import Cohorts, Memory, Objective, ServerStep, Work
from privfed.core.deferred import Tensor, torch


class FedSplit(Objective):
    """FedSplit: proximal steps around reflected models, for clients that return.

    A client keeps its vector z, d numbers, sends the change of z, d numbers, and receives 2 d: the
    current model, and the model of round 1, which is the z of new clients. With
    `server.optimizer = "fedavg"` at rate 1 the next model is the mean of all clients' z; any other
    server optimizer takes other steps towards that mean, with the same fixed point.

    Under privacy the change is clipped like an update, as one vector and one event, and the mean is
    computed from releases and public constants. Client states cost no additional privacy
    (`privfed.client.client_states`). The mean lacks what clipping removes from changes, and
    accumulates the noise of all rounds.
    """

    keeps: ClassVar[int] = 1
    server_step: ClassVar[ServerStep] = "plain"
    broadcasts: ClassVar[int] = 2

    proximal_step: float = Field(1.0, gt=0)
    """Step s of the proximal point; the smaller, the nearer clients stay to the reflected model."""

    def init(self, params: Tensor) -> Memory:
        return {"first": params.clone(), "mean": params.clone()}

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        yield from ()
        return {"first": memory["first"]}

    def initial_client_state(self, broadcast: Broadcast) -> Tensor:
        return broadcast["first"]

    def direction(
        self, grad: Tensor, w: Tensor, broadcast: Broadcast, state: Tensor | None
    ) -> Tensor:
        return grad + (w - _reflected(broadcast, state)) / self.proximal_step

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        reflected = _reflected(broadcast, state)
        nearest = torch.where(work.steps[:, None] > 0, w, reflected)
        change = 2 * (nearest - broadcast["params"])
        return change, _state(state) + change

    def conclude(
        self, broadcast: Broadcast, released: Tensor, memory: Memory, cohorts: Cohorts
    ) -> tuple[Tensor, Memory]:
        mean = memory["mean"] + released * cohorts.size / cohorts.clients
        return mean - broadcast["params"], {**memory, "mean": mean}


def _reflected(broadcast: Broadcast, state: Tensor | None) -> Tensor:
    """Returns the centers 2 x - z_k `[c, d]` of the clients' proximal steps."""
    return 2 * broadcast["params"] - _state(state)


def _state(state: Tensor | None) -> Tensor:
    if state is None:
        raise ValueError("FedSplit needs each client's state, but got none")
    return state
