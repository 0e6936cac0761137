"""The environment of rounds: clients, ledger, storage and random streams.

*Durability* (`Writing`): writes are immediate, or run in parallel with local computations. Three
steps wait until a release is on disk (`flush`): showing it, sending a request that depends on it,
and the next charge. Local computations in between, such as the server's step and forward passes of
an evaluation, do not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from accounting.events import Event
from accounting.ledger import Charge
from privfed.client.byzantine import Attackers
from privfed.client.exchange import ClientState, Exchange, Executor
from privfed.core.ranks import Ranks, SingleProcess
from privfed.core.streams import Keys, Streams
from privfed.privacy.mechanism import BoundedSum, PublicState
from privfed.privacy.noise.correlated import Correlated
from privfed.round.algorithm import Algorithm
from privfed.sampling.cohort import Population
from privfed.secure.summation import Culprit

Write = Callable[[], None]


class Writing(Protocol):
    """Interface of classes that make releases durable, one after another."""

    def begin(self, write: Write) -> None:
        """Calls `write` after all earlier writes, at once or later."""

    def flush(self) -> None:
        """Returns when all scheduled writes are durable. Raises the error of a failed write."""


class Immediate:
    """Writes immediately."""

    def begin(self, write: Write) -> None:
        write()

    def flush(self) -> None:
        return


class InBackground:
    """Writes in a separate thread; used as a context manager.

    The end of the context waits for all writes, even if it is interrupted repeatedly. If a write
    failed, the context raises that error instead of any other, such as one of the block.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="releases")
        self._begun: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        interrupted = self._waited()
        self._thread.shutdown()
        self.flush()
        if interrupted and error is None:
            raise interrupted

    def begin(self, write: Write) -> None:
        self.flush()
        self._begun = self._thread.submit(write)

    def flush(self) -> None:
        if self._begun is not None:
            wait([self._begun])
            begun, self._begun = self._begun, None
            begun.result()

    def _waited(self) -> BaseException | None:
        """Waits for the scheduled write; returns the last interruption of this wait, or None."""
        interrupted = None
        while self._begun is not None and not self._begun.done():
            try:
                wait([self._begun])
            except BaseException as signal:
                interrupted = signal
        return interrupted


class Watch(Protocol):
    """Interface of observers of data that no epsilon covers; in simulations only."""

    def rows(
        self, round: int, ids: NDArray[np.int64], rows: Tensor, byzantine: NDArray[np.bool_]
    ) -> None:
        """Receives raw rows `[c, m]` of clients `[c]`, and a mask of Byzantine ones."""

    def judged(self, round: int, ids: NDArray[np.int64], rows: Tensor, aggregate: Tensor) -> None:
        """Receives rows `[n, m]` as clients `[n]` sent them, and their aggregate `[m]`."""

    def aggregate(self, round: int, aggregate: Tensor) -> None:
        """Receives the rule's aggregate `[m]`, after each pass of a training round."""


class Charges(Protocol):
    """Interface of ledgers, to which rounds are charged."""

    def charge(self, round: int, event: Event) -> Charge:
        """Makes the round's charge durable.

        Raises `BudgetExceeded` if the budget does not suffice; nothing is charged.
        """


class ReleaseStore(Protocol):
    def write(self, charge: Charge, released: list[Tensor], state: PublicState) -> None:
        """Makes all releases of a charged round so far durable, in the order of its exchanges.

        `state` is the mechanism's public state after the last one.
        """


class Exclusions(Protocol):
    """Interface of records of parties that secure sums identified as Byzantine.

    These parties are excluded from all later rounds.
    """

    def before(self, round: int) -> frozenset[int]:
        """Returns the parties that were identified before `round`, and so are excluded from it."""

    def note(self, culprit: Culprit) -> None:
        """Records a party that was identified as Byzantine."""


class NoExclusions:
    """No exclusions: Byzantine parties are not recorded."""

    def before(self, round: int) -> frozenset[int]:
        return frozenset()

    def note(self, culprit: Culprit) -> None:
        return


class RemoteSites(Protocol):
    """Interface to sites on other machines, which sample their clients and send sums of rows."""

    def gather(self) -> None:
        """Waits until enough sites are available for a round; called before the round is charged.

        Raises `Busy` if too few sites are available.
        """

    def sum(self, round: int, number: int, exchange: Exchange, state: PublicState) -> BoundedSum:
        """Returns the sum over surviving sites for exchange `number`, with their noise.

        `state` is the mechanism's public state. Raises `Aborted` if too few sites survive.
        """


@dataclass(frozen=True)
class World:
    """The environment of rounds: clients, ledger, storage and random streams."""

    executor: Executor
    population: Population
    ledger: Charges
    store: ReleaseStore
    streams: Streams
    watch: Watch | None = None
    states: ClientState | None = None
    """Client states of the objective."""
    histories: ClientState | None = None
    """The rule's memory of clients."""
    correlated: Correlated | None = None
    attackers: Attackers | None = None
    sites: RemoteSites | None = None
    """Sites on other machines, which sample and train their own clients; None in a local run."""
    exclusions: Exclusions = field(default_factory=NoExclusions)
    """Parties identified as Byzantine in secure sums."""
    layers: tuple[int, ...] = ()
    """Number of values of each of the model's parameter tensors, in order of the flat vector."""
    writing: Writing = field(default_factory=Immediate)
    """Makes releases durable, immediately or in the background."""
    ranks: Ranks = field(default_factory=SingleProcess)
    """The processes of this run; the first process charges, samples and writes."""

    @property
    def remembered(self) -> tuple[ClientState, ...]:
        """All client states that are stored between rounds: the objective's and the rule's."""
        return tuple(each for each in (self.states, self.histories) if each is not None)

    def noise(self, algorithm: Algorithm, round: int, number: int) -> Keys:
        """Returns the random streams of the noise in the release of exchange `number`."""
        if self.correlated and algorithm.mechanism.remembers:
            return self.correlated.at(algorithm.evaluation_rounds.turn(round))
        return self.streams.at(f"noise/{number}", round)


@dataclass
class Journal:
    """Stores the releases of one charged round, in order."""

    charge: Charge
    world: World
    releases: list[Tensor] = field(default_factory=list)

    def keep(self, released: Tensor, state: PublicState) -> None:
        """Starts a durable write of a release, with the mechanism's public `state` after it.

        Client states become durable before the release. Copies are written, so `released` may be
        changed in place during the write.
        """
        self.releases.append(released.clone())
        for memory in self.world.remembered:
            memory.keep()
        world, releases = self.world, list(self.releases)
        public = {name: value.clone() for name, value in state.items()}
        write = partial(world.store.write, self.charge, releases, public)
        world.ranks.first(lambda: world.writing.begin(write))

    def flush(self) -> None:
        """Waits until all releases of this round are durable."""
        if self.releases:
            self.world.ranks.first(self.world.writing.flush)
