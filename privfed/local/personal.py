"""What a client uses for itself, where that is not the model of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeGuard

from privfed.local.exchange import Broadcast
from privfed.local.objective import Objective

if TYPE_CHECKING:
    from torch import Tensor


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
