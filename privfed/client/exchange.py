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
