"""A local objective: SGD on a client's own loss, with a corrected gradient.

A drift correction is a vector added to the local gradient, so methods differ only in `direction`,
and in what they need broadcast or remembered. Everything is stacked over the clients of a chunk.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from privfed.vector import Layout

Broadcast = Mapping[str, Tensor]
"""Released values only, by name; "params" `[d]` is the current model."""
Anchor = Literal["", "all", "batch"]
Memory = Mapping[str, Tensor]
"""What an objective keeps of former rounds: functions of released values, public, checkpointed."""


@dataclass(frozen=True)
class Exchange:
    """One question to the cohort and the layout of each client's answer.

    `task` is "gradient" (the loss's gradient at the broadcast model), "train" (local training) or
    "terms" (what a rule sums next, from the rows just trained).
    """

    task: str
    broadcast: Broadcast
    layout: Layout


class ClientState(Protocol):
    """What a stateful objective remembers of each client between rounds: `[k]` per client.

    Bounded or memory-mapped, secret (it lies under private/), committed with the checkpoint.
    """

    def gather(self, ids: NDArray[np.int64]) -> Tensor:
        """`[c, k]`"""
        ...

    def scatter(self, ids: NDArray[np.int64], values: Tensor) -> None: ...


class Objective(Protocol):
    """c clients at once: w `[c, d]` their models, `own` `[c, k]` their state or None."""

    stateful: bool
    exchanges: int
    """Exchanges before and with training; fixed, so that the round's event is known beforehand."""
    broadcasts: int
    """Vectors `[d]` that each client is sent with the question to train."""
    unproven: str
    """Why it is refused under privacy; empty where its messages have a proven bound."""
    anchored: Anchor
    """Which of a client's gradients at the broadcast model is `own` `[c, d]`, if any: that of all
    its examples ("all"), or at each step that of the same batch ("batch").
    """

    def layout(self, d: int) -> Layout:
        """The row a client sends after training. Its part "delta" `[d]` is the model update."""
        ...

    def init(self, params: Tensor) -> Memory:
        """The memory before round 1."""
        ...

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        """Exchanges before training, e.g. of gradients. Each `yield` returns what was released.

        Its return value is what training broadcasts besides "params".
        """
        ...

    def direction(
        self, grad: Tensor, w: Tensor, broadcast: Broadcast, own: Tensor | None
    ) -> Tensor:
        """The corrected gradient `[c, d]` to descend along."""
        ...

    def message(
        self, w: Tensor, broadcast: Broadcast, own: Tensor | None, steps: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Rows `[c, m]` after `steps` `[c]` local steps, and the new own state."""
        ...

    def update(self, aggregate: Tensor) -> Tensor:
        """The server's update `[d]` from what training released `[m]`."""
        ...

    def remember(
        self, params: Tensor, aggregate: Tensor, memory: Memory, broadcast: Broadcast
    ) -> Memory:
        """The memory after a round that broadcast `broadcast` and released `aggregate` `[m]`."""
        ...
