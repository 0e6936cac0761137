"""Where rounds happen: who answers, who counts, who keeps, and where randomness comes from.

*Durability* (`Writing`): at once, or beside work that sends and shows nothing. A release lies on
disk before anybody is asked anything that follows from it, before anything of it is shown, and
before the next charge: each of these waits for `settle`. What a run does by itself in between, as
the server's step and the evaluation's forward passes, need not wait.
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
from privfed.core.ranks import Alone, Ranks
from privfed.core.streams import Keys, Streams
from privfed.privacy.mechanism import BoundedSum, PublicState
from privfed.privacy.noise.correlated import Correlated
from privfed.round.algorithm import Algorithm
from privfed.sampling.cohort import People
from privfed.secure.summation import Culprit

Write = Callable[[], None]


class Writing(Protocol):
    """Whoever makes releases durable, one after the other."""

    def begin(self, write: Write) -> None:
        """Have `write` called, once whatever was begun before is through."""
        ...

    def settle(self) -> None:
        """Returns when all that was begun is durable. Raises what a write raised."""
        ...


class AtOnce:
    """Writes before it goes on."""

    def begin(self, write: Write) -> None:
        write()

    def settle(self) -> None:
        return


class InBackground:
    """Writes in a thread of its own.

    Leaving its context waits for that, however often it is interrupted: whoever comes next finds
    all written. A write that failed raises its error there, whatever else went wrong.
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
        self.settle()
        if interrupted and error is None:
            raise interrupted

    def begin(self, write: Write) -> None:
        self.settle()
        self._begun = self._thread.submit(write)

    def settle(self) -> None:
        if self._begun is not None:
            wait([self._begun])
            begun, self._begun = self._begun, None
            begun.result()

    def _waited(self) -> BaseException | None:
        """What interrupted the wait for what was begun, once that is through."""
        interrupted = None
        while self._begun is not None and not self._begun.done():
            try:
                wait([self._begun])
            except BaseException as signal:
                interrupted = signal
        return interrupted


class Watch(Protocol):
    """Shown what no epsilon covers; simulation-only."""

    def rows(
        self, round: int, ids: NDArray[np.int64], rows: Tensor, hostile: NDArray[np.bool_]
    ) -> None:
        """Clients `[c]`, the raw rows `[c, m]` that they bound next, and which are hostile."""
        ...

    def judged(self, round: int, ids: NDArray[np.int64], rows: Tensor, aggregate: Tensor) -> None:
        """What a rule that sees rows `[n, m]`, as clients `[n]` sent them, made of these: `[m]`."""
        ...

    def aggregate(self, round: int, aggregate: Tensor) -> None:
        """What the rule made of the rows, `[m]`; of several passes, of each so far."""
        ...


class Charges(Protocol):
    """Where rounds are charged: a ledger."""

    def charge(self, round: int, event: Event) -> Charge:
        """Makes the round's charge durable. Raises `BudgetExceeded` with nothing charged."""
        ...


class ReleaseStore(Protocol):
    def write(self, charge: Charge, released: list[Tensor], state: PublicState) -> None:
        """Makes all exchanges' releases of the charged round so far durable."""
        ...


class Exclusions(Protocol):
    """Who was proved to lie in a secure sum, and takes part in none of later rounds."""

    def before(self, round: int) -> frozenset[int]:
        """The parties who were named in rounds before `round`."""
        ...

    def note(self, culprit: Culprit) -> None:
        """Remember a culprit."""
        ...


class NoExclusions:
    """Nobody is remembered, and nobody left out."""

    def before(self, round: int) -> frozenset[int]:
        return frozenset()

    def note(self, culprit: Culprit) -> None:
        return


class RemoteSites(Protocol):
    """Sites on machines of their own, which draw their clients and send sums of their rows."""

    def gather(self) -> None:
        """Returns when enough sites are at hand for a round, before anything is charged for it.

        Raises `Busy` where they are not.
        """
        ...

    def sum(self, round: int, number: int, exchange: Exchange, state: PublicState) -> BoundedSum:
        """The sum over all sites for exchange `number`, with their noise. Raises `Aborted`.

        `state` is the mechanism's public one.
        """
        ...


@dataclass(frozen=True)
class World:
    """Where rounds happen: who answers, who counts, who keeps, and where randomness comes from."""

    executor: Executor
    people: People
    ledger: Charges
    store: ReleaseStore
    streams: Streams
    watch: Watch | None = None
    states: ClientState | None = None
    """What clients remember for their objective."""
    histories: ClientState | None = None
    """What the rule remembers of clients."""
    correlated: Correlated | None = None
    attackers: Attackers | None = None
    sites: RemoteSites | None = None
    """Sites elsewhere, whose clients nobody else draws or trains; None where all are here."""
    exclusions: Exclusions = field(default_factory=NoExclusions)
    """Parties of secure sums who were proved to lie."""
    layers: tuple[int, ...] = ()
    """How many numbers each parameter of the model has, in their order in its flat vector."""
    writing: Writing = field(default_factory=AtOnce)
    """When releases become durable."""
    ranks: Ranks = field(default_factory=Alone)
    """Who plays this run together: the first charges, draws and writes."""

    @property
    def remembered(self) -> tuple[ClientState, ...]:
        """All that is kept of clients between rounds."""
        return tuple(each for each in (self.states, self.histories) if each is not None)

    def noise(self, algorithm: Algorithm, round: int, number: int) -> Keys:
        """The randomness of the release of exchange `number`."""
        if self.correlated and algorithm.mechanism.remembers:
            return self.correlated.at(algorithm.evaluation_rounds.turn(round))
        return self.streams.at(f"noise/{number}", round)


@dataclass
class Journal:
    """Keeps the releases of one charged round, in order."""

    charge: Charge
    world: World
    releases: list[Tensor] = field(default_factory=list)

    def keep(self, released: Tensor, state: PublicState) -> None:
        """Begins to make a release durable, with the mechanism's public `state` after it.

        What is remembered of clients is durable before it. Copies are written: whoever is given
        `released` may compute in place while that goes on.
        """
        self.releases.append(released.clone())
        for memory in self.world.remembered:
            memory.keep()
        world, releases = self.world, list(self.releases)
        public = {name: value.clone() for name, value in state.items()}
        write = partial(world.store.write, self.charge, releases, public)
        world.ranks.first(lambda: world.writing.begin(write))

    def settle(self) -> None:
        """Returns when all that was released in this round is durable."""
        if self.releases:
            self.world.ranks.first(self.world.writing.settle)
