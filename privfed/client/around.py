"""Base class of objectives that wrap another objective, to train only a part of the model or to
compress messages.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import ConfigDict, SkipValidation

from privfed.client.descent import Correction, LocalLoss, LocalStep
from privfed.client.exchange import Broadcast
from privfed.client.objective import Message, Objective
from privfed.core.deferred import Tensor


class Around(Objective):
    """An objective that wraps another, `inner`, and delegates every hook that it does not override.

    Properties and constants are delegated, too. Hooks of `inner` receive only the part of the
    client states that belongs to `inner` (`inner_state`).
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    inner: SkipValidation[Objective]

    def inner_state(self, state: Tensor | None, broadcast: Broadcast) -> Tensor | None:
        """Returns the part `[c, k]` of the client states `state` that belongs to `inner`.

        By default this is all of `state`. The result is None if `inner` keeps no state.
        """
        return state

    def contrasts(self, broadcast: Broadcast, state: Tensor | None) -> Tensor | None:
        return self.inner.contrasts(broadcast, self.inner_state(state, broadcast))

    def origin(self, broadcast: Broadcast, state: Tensor | None, measured: Tensor | None) -> Tensor:
        return self.inner.origin(broadcast, self.inner_state(state, broadcast), measured)

    def carry(self, broadcast: Broadcast, state: Tensor | None) -> Tensor | None:
        return self.inner.carry(broadcast, self.inner_state(state, broadcast))

    def anchor(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, carried: Tensor | None
    ) -> Tensor:
        return self.inner.anchor(w, broadcast, self.inner_state(state, broadcast), carried)

    def along(self, step: LocalStep, broadcast: Broadcast) -> tuple[Tensor, Tensor | None]:
        state = self.inner_state(step.state, broadcast)
        return self.inner.along(replace(step, state=state), broadcast)

    def personal(
        self, broadcast: Broadcast, state: Tensor | None, measured: Tensor | None
    ) -> Tensor:
        return self.inner.personal(broadcast, self.inner_state(state, broadcast), measured)


HOOKS = frozenset(
    name
    for kind in (LocalLoss, Correction, Message, Objective)
    for name in {*vars(kind), *kind.__annotations__}
    if not name.startswith(("_", "model_"))
)
"""Names of all hooks and declarations of an objective."""


def _of_inner(name: str) -> property:
    return property(lambda self: getattr(self.inner, name))


for _hook in HOOKS - vars(Around).keys():
    setattr(Around, _hook, _of_inner(_hook))
