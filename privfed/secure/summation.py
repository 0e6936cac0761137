"""What a summation is: something that adds clients' rows and gives back their total only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeGuard

import numpy as np

from privfed.core.streams import Keys, Streams
from privfed.core.vector import Indices
from privfed.secure.limits import SENDS, Limits

if TYPE_CHECKING:
    from privfed.privacy.integers import Share
    from privfed.privacy.mechanism import BoundedRows, BoundedSum, Encoding


Reason = Literal["wrong share", "wrong dealing", "garbled shares"]


@dataclass(frozen=True)
class Culprit:
    """A `client` that lied in `exchange` of `round`.

    *wrong share*: it told another share than it had acknowledged. *wrong dealing*: shares that it
    dealt do not give the secret that it committed to. Both by its own signed messages, which are
    the `proof` (`privfed.secure.masked.evidence`). *garbled shares*: so many `complaints` that it
    dealt what nobody can use; one more than there may be liars. That is a count, and no proof to
    anybody who was not there: against a server that lies itself it says nothing.
    """

    client: int
    round: int
    exchange: int
    reason: Reason
    proof: bytes = b""
    complaints: int = 0


def _unheard(culprit: Culprit) -> None:
    """Names nobody."""


def _nobody() -> Indices:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Session:
    """What one sum is bound to: an exchange of a round, the model that was broadcast, and whom.

    `clients` `[n]` is the cohort and `leaves` `[n]` says when each of them drops out
    (`privfed.secure.limits`; empty: nobody does). Rounding draws from `streams`.

    Where sites are the parties, they are the `clients` of the session, and `sites` `[population]`
    holds the site of each client whose row is added, and `identities` `[population]` its own
    number, by which it rounds whoever else there is. Who is proved to lie in it, `accuse` is told,
    whether the sum aborts or not.
    """

    round: int
    exchange: int
    model_hash: bytes
    clients: Indices = field(default_factory=_nobody)
    leaves: Indices = field(default_factory=_nobody)
    streams: Streams = field(default_factory=lambda: Streams(0))
    sites: Indices | None = None
    identities: Indices | None = None
    accuse: Callable[[Culprit], None] = _unheard

    @property
    def senders(self) -> Indices:
        """The clients who send their row."""
        return self.clients[np.isin(self.leaves, SENDS)] if len(self.leaves) else self.clients

    @property
    def sending(self) -> int:
        """How many of the clients send their row."""
        return len(self.senders)

    def rounding_keys(self, clients: Indices) -> Keys:
        """The randomness by which `clients` `[c]` round their rows."""
        numbers = clients if self.identities is None else self.identities[clients]
        return self.streams.at(f"noise/rounding/{self.exchange}", self.round, numbers)

    def layer_keys(self, client: int) -> Keys:
        """The randomness of one client's layers of noise."""
        ids = np.array([client])
        return next(self.streams.at(f"noise/layers/{self.exchange}", self.round, ids).each())


class SumProtocol(Protocol):
    """How rows are summed, and who sees what of it."""

    seen: ClassVar[str]
    """What is seen by whom, in words."""
    opener: ClassVar[str]
    """The party that is shown the sum first, and adds central noise to it."""
    hides_rows: ClassVar[bool]
    """Whether nobody sees a client's row."""
    approximate: ClassVar[bool]
    """Whether sums have to be rounded by who opens them, and noised before anyone sees them."""
    layers: ClassVar[bool]
    """Whether it takes layers of noise off again."""

    def over(self, limits: Limits) -> Summation:
        """Sums within `limits`. Raises `Refused`."""
        ...


class RowHiding(SumProtocol, Protocol):
    """A protocol that shows nobody's row, whatever the cohort within `Limits`."""

    bits: int
    """How many bits a whole number that is summed has."""
    range: float
    """The largest number of a row without a proven norm."""
    names_liars: ClassVar[bool]
    """Whether it names parties that lie, who are then left out of later rounds."""

    @property
    def may_collude(self) -> float:
        """The fraction of a cohort that may work with who opens sums, as configured."""
        ...

    @property
    def relies_on(self) -> tuple[str, ...]:
        """The parties that have to follow the protocol, beyond a bounded part of the clients."""
        ...

    def begun(self, limits: Limits) -> int:
        """The smallest cohort with which a sum is begun."""
        ...

    def least_admitted(self, limits: Limits) -> int:
        """The smallest cohort that may be admitted, for the protocol's promise."""
        ...

    def fewest(self, limits: Limits) -> int:
        """The fewest survivors of any sum: with fewer it aborts."""
        ...

    def sharing(self, limits: Limits) -> int:
        """Among how many clients at least the whole of the counted noise is."""
        ...

    def added(self, limits: Limits) -> float:
        """A lower bound on the part of counted noise that is added."""
        ...

    def colluding(self, limits: Limits) -> float:
        """An upper bound on the part of counted noise known to who colludes with who opens sums."""
        ...

    def known_per_colluder(self, limits: Limits) -> float:
        """An upper bound on the part of counted noise known to colluders, over `may_collude`."""
        ...

    def withstood(self, limits: Limits) -> float:
        """The largest `may_collude` with which sums as they run within `limits` hide rows; of
        sites their number.
        """
        ...

    def honest(self, limits: Limits) -> float:
        """A lower bound on the part of counted noise added by clients who keep it to themselves."""
        ...

    def promise(self, clients: int, limits: Limits | None = None) -> str:
        """What holds of a sum over `clients`, in words."""
        ...

    def colluding_sites(self, sites: int) -> int:
        """k, how many of `sites` may be hostile, or work with who opens sums: one at least."""
        ...

    def least_sites(self, sites: int) -> int:
        """The fewest of `sites` that have to stay for a sum to be opened."""
        ...


def shows_no_row(protocol: SumProtocol) -> TypeGuard[RowHiding]:
    """Whether nobody sees a client's row."""
    return protocol.hides_rows


class Aborted(Exception):
    """A sum that cannot be completed. Its round is charged and consumed, never repeated."""


class Accumulator(Protocol):
    def add(self, ids: Indices, rows: BoundedRows) -> None:
        """Add rows `[c, m]` of clients `ids` `[c]`; each client once per session."""
        ...

    def close(self) -> BoundedSum:
        """The total of the survivors. Raises `Aborted`."""
        ...


class Summation(Protocol):
    def open(self, session: Session, length: int, encoding: Encoding) -> Accumulator:
        """Begin a sum of rows `[length]`. Raises `Aborted`."""
        ...

    def encoded(self, encoding: Encoding, length: int) -> float:
        """The norm of what is really summed for rows within a bound: what noise has to cover.

        Raises `Refused` where such rows cannot be summed.
        """
        ...

    def stops(self, clients: int, dropout: float) -> float:
        """An upper bound on the chance that a sum of `clients` aborts; each drops out by a coin."""
        ...

    def seconds(self, length: int, clients: int, noise: Share | None = None) -> float:
        """What a sum over `clients` takes when all of it runs on one core, about.

        They are those whose rows are added, also where sites are the parties. Each party adds
        `noise`.
        """
        ...

    def step(self, encoding: Encoding, length: int) -> float | None:
        """The step of the whole numbers that rows become; None where they stay real."""
        ...

    def download(self, clients: int, noise: Share | None = None) -> float:
        """Bytes that one of `clients` is sent beside the model, about."""
        ...

    def upload(self, length: int, clients: int, noise: Share | None = None) -> float:
        """Bytes that one of `clients` sends for a row `[length]`, about."""
        ...
