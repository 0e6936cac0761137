"""Worker momentum: clients send an average of their own updates over rounds.

Source: Karimireddy, He & Jaggi 2021, "Learning from history for Byzantine robust optimization",
Algorithm 1; El Mhamdi, Guerraoui & Rouault 2021, "Distributed momentum for Byzantine-resilient
stochastic gradient descent".

With u_t the update of a client in its t-th round of participation, and beta the momentum, it sends
    m_t = beta m_(t-1) + (1 - beta) u_t
instead of u_t. With one local step u_t is -lr times a gradient, and m_t is -lr times the papers'
momentum. Averaging over rounds reduces the random differences between honest clients, so robust
rules on rows distinguish Byzantine rows better.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from privfed.client.exchange import Broadcast
from privfed.client.objective import Objective, Work
from privfed.core.deferred import Tensor, torch


class WorkerMomentum(Objective):
    """Plain local SGD that sends its momentum over rounds, for clients that return.

    A client keeps d numbers and sends one vector of d numbers, which every rule on rows supports. A
    client that is not sampled, or drops out, keeps its momentum unchanged. Under privacy the
    momentum is clipped like an update, and the state costs no additional privacy
    (`privfed.client.client_states`). The server's update on its root set has no momentum.
    """

    keeps: ClassVar[int] = 1

    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum beta, the weight of earlier rounds; 0 is FedAvg."""
    start: Literal["update", "zero"] = "update"
    """A client's first momentum. "update": its first update (Karimireddy, He & Jaggi 2021). "zero":
    (1 - momentum) times that, as from a zero state, so rows of new clients are shorter.
    """

    @property
    def sums_states(self) -> bool:
        return False

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        update = w - broadcast["params"]
        if state is None:  # the server's own root set
            return update, None
        past = torch.full_like(update[:, :1], self.momentum)
        if self.start == "update" and work.returning is not None:
            past = past * work.returning[:, None]
        averaged = torch.lerp(update, state, past)
        return averaged, averaged
