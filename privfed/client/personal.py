"""What a client uses for itself, where that is not the model of the run."""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeGuard

from privfed.client.exchange import Broadcast
from privfed.client.objective import Anchor, Objective, Work
from privfed.client.objectives.sgd import Sgd
from privfed.core.deferred import Tensor


class Beside(Sgd):
    """FedAvg; what a client keeps is carried along its steps, and never sent.

    Under privacy a round is FedAvg's: w, and so the row, follows from the broadcast model, the
    client's examples and its coins alone, whatever it keeps. That costs nothing while it stays:
    what is shown of it is covered by no epsilon. Subclasses step along the gradient at w, and use
    the one at their `anchor`, of the same batch, for what they keep.
    """

    keeps: ClassVar[int] = 1
    anchored: ClassVar[Anchor] = "batch"

    @property
    def sums_states(self) -> bool:
        return False

    def unseen(self, broadcast: Broadcast) -> Tensor:
        return broadcast["params"]

    def carry(self, broadcast: Broadcast, state: Tensor | None) -> Tensor:
        return self.unseen(broadcast) if state is None else state

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        return w - broadcast["params"], work.carried


class Personal(Objective, Protocol):
    """An objective after which each client has a model of its own."""

    def personal(
        self, broadcast: Broadcast, state: Tensor | None, measured: Tensor | None
    ) -> Tensor:
        """The models `[c, d]` that clients use for themselves.

        `state` and `measured` are theirs, as in `Objective.origin`.
        """
        ...


def personalises(objective: Objective) -> TypeGuard[Personal]:
    """Whether clients end up with models of their own."""
    return hasattr(objective, "personal")
