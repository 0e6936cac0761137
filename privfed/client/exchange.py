"""What the cohort is asked, and by whom: exchanges, the chunks of their answers, executors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from privfed.core.deferred import Tensor
from privfed.core.vector import Layout
from privfed.sampling.cohort import Cohort

if TYPE_CHECKING:
    from privfed.privacy.mechanism import PublicState

Broadcast = Mapping[str, "Tensor"]
"""Released values only, by name; "params" `[d]` is the current model."""


@dataclass(frozen=True)
class Exchange:
    """One question to the cohort and the layout of each client's answer.

    `task` is "gradient" (the loss's gradient at the broadcast model), "train" (local training),
    "project" (a first part of what that sends, which changes nothing that clients keep) or "terms"
    (what a rule sums next, from the rows just trained). A gradient is sent times `scale`,
    so that one clip fits both it and an update; the release is that of the scaled rows. `bounds` is
    the mechanism's public state, by which clients bound their rows; `remembered` is what simulated
    attackers remember.
    """

    task: str
    broadcast: Broadcast
    layout: Layout
    scale: float = 1.0
    bounds: PublicState = field(default_factory=dict)
    remembered: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Chunk:
    """Some of the cohort: `ids` `[c]`, their `rows` `[c, m]` and aggregation `weights` `[c]`."""

    ids: NDArray[np.int64]
    rows: Tensor
    weights: Tensor


class ClientState(Protocol):
    """What a stateful objective remembers of each client between rounds: `[k]` per client.

    Bounded or memory-mapped, secret (it lies under private/), committed every round.
    """

    def begin(self, round: int) -> None: ...

    def gather(self, ids: NDArray[np.int64], unseen: Tensor) -> tuple[Tensor, Tensor]:
        """States `[c, k]` (`unseen` `[k]` where there is none yet), and who has one `[c]`."""
        ...

    def scatter(self, ids: NDArray[np.int64], values: Tensor) -> None: ...

    def keep(self) -> None:
        """Make the round's states durable; before its release is."""
        ...

    def discard(self) -> None:
        """Forget what was scattered since `begin`: the round was aborted."""
        ...

    def replay(self, round: int, released: bool) -> None: ...

    def settle(self, round: int) -> None: ...


class Executor(Protocol):
    """Asks the cohort: in this process, or across ranks."""

    def answering(self, cohort: Cohort) -> Cohort:
        """Those of `cohort` who answer at all, by coins that read nobody's data."""
        ...

    def chunks(self, exchange: Exchange, cohort: Cohort) -> Iterator[Chunk]:
        """The cohort's answers, some clients at a time; nothing for an empty cohort."""
        ...

    def root(self, exchange: Exchange, round: int) -> Tensor:
        """The server's own answer `[m]`, from its root set."""
        ...
