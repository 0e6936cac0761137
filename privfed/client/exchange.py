"""The interfaces of exchanges with the cohort: requests, answers in chunks, and executors."""

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
    """A request to the cohort, and the layout of each client's answer.

    Attributes:
      task: "gradient" (the loss's gradient at the broadcast model), "train" (local training),
        "project" (the first message of a two-message update, which leaves client states unchanged),
        "measure" (client-side evaluation) or "terms" (for an aggregation rule of several sums: the
        terms of the next sum, computed from the rows of this round's training).
      broadcast: Released values by name.
      layout: Layout of each client's answer.
      scale: Factor of gradients before clipping, so one clip fits both gradients and updates; the
        release is of the scaled rows.
      bounds: The mechanism's public state, by which clients bound their rows; may be empty.
      remembered: Memory of simulated attackers; empty without them.
    """

    task: str
    broadcast: Broadcast
    layout: Layout
    scale: float = 1.0
    bounds: PublicState = field(default_factory=dict)
    remembered: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Chunk:
    """Answers of c clients: indices `ids` `[c]`, `rows` `[c, m]`, aggregation `weights` `[c]`."""

    ids: NDArray[np.int64]
    rows: Tensor
    weights: Tensor


class ClientState(Protocol):
    """The states of a stateful objective between rounds: `[k]` per client.

    States are secret, stored under private/ and made durable in every round. Memory does not grow
    with the number of clients.
    """

    def begin(self, round: int) -> None: ...

    def gather(self, ids: NDArray[np.int64], initial_client_state: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the states `[c, k]` of clients, and a mask `[c]` of clients that have one.

        Args:
          ids: client indices, shape [c].
          initial_client_state: state returned for clients without one, shape [k].
        """

    def scatter(self, ids: NDArray[np.int64], values: Tensor) -> None: ...

    def keep(self) -> None:
        """Makes the round's states durable; called before the release is stored."""

    def discard(self) -> None:
        """Discards the round's new states, also if `keep` stored them; called if it is aborted."""

    def replay(self, round: int, released: bool) -> None: ...

    def flush(self, round: int) -> None: ...


class Executor(Protocol):
    """Obtains a cohort's answers to requests, in one process or in several (ranks)."""

    def answering(self, cohort: Cohort) -> Cohort:
        """Returns `cohort` without the clients that drop out, drawn independently of the data."""

    def chunks(self, exchange: Exchange, cohort: Cohort) -> Iterator[Chunk]:
        """Yields the cohort's answers in chunks; nothing for an empty cohort.

        Args:
          exchange: the request, with broadcast and layout.
          cohort: the clients that answer.
        """

    def root(self, exchange: Exchange, round: int) -> Tensor:
        """Returns the row `[m]` that the server computes for `exchange` on its own root set.

        The root set are the server's own examples (`aggregation.root`).
        """
