"""Interfaces of summations, which add clients' rows and return only their total."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

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
    """A `client` that deviated from the protocol in the sum numbered `exchange` of `round`.

    *wrong share*: the client revealed a share that differs from the one it acknowledged. *wrong
    dealing*: the shares that the client distributed do not reconstruct the secret that it committed
    to. In both cases its own signed messages are the `proof` (module `evidence` of the protocol).
    *garbled shares*: `complaints` recipients, more than the assumed number of Byzantine clients,
    reported unusable shares. A count proves nothing to a third party or against a malicious server.
    """

    client: int
    round: int
    exchange: int
    reason: Reason
    proof: bytes = b""
    complaints: int = 0


def _ignore(culprit: Culprit) -> None:
    """Does nothing."""


def _no_clients() -> Indices:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Session:
    """The context of one sum: an exchange of a round, the broadcast model and the cohort.

    Attributes:
      round: round number.
      exchange: number of the sum within the round.
      model_hash: hash of the broadcast model.
      clients: indices of the cohort's clients, shape [n]; of all sites, if sites are the parties.
      leaves: stage at which each client drops out, shape [n] (`Leaves`); empty for no dropout.
      streams: randomness of rounding, of noise and of the sparse graph.
      sites: site of each client of the population, shape [population]; None without sites.
      identities: number of each client by which its random stream for rounding is chosen, shape
        [population]; None to use its index.
      accuse: called with every culprit, whether the sum aborts or not.
    """

    round: int
    exchange: int
    model_hash: bytes
    clients: Indices = field(default_factory=_no_clients)
    leaves: Indices = field(default_factory=_no_clients)
    streams: Streams = field(default_factory=lambda: Streams(0))
    sites: Indices | None = None
    identities: Indices | None = None
    accuse: Callable[[Culprit], None] = _ignore

    @property
    def senders(self) -> Indices:
        """The parties that send their row, including those that drop out before unmasking."""
        return self.clients[np.isin(self.leaves, SENDS)] if len(self.leaves) else self.clients

    @property
    def sending(self) -> int:
        """The number of clients that send their row."""
        return len(self.senders)

    def rounding_keys(self, clients: Indices) -> Keys:
        """Returns the random streams with which `clients` `[c]` round their rows and add noise."""
        numbers = clients if self.identities is None else self.identities[clients]
        return self.streams.at(f"noise/rounding/{self.exchange}", self.round, numbers)

    def layer_keys(self, client: int) -> Keys:
        """Returns the randomness of one client's layers of noise."""
        ids = np.array([client])
        return next(self.streams.at(f"noise/layers/{self.exchange}", self.round, ids).each())


class SumProtocol(Protocol):
    """Interface of sum protocols: how rows are summed, and which party sees what."""

    seen: ClassVar[str]
    """Description of what each party sees."""
    opener: ClassVar[str]
    """The party that opens the sum and adds central noise to it."""
    hides_rows: ClassVar[bool]
    """Whether no party sees a client's row."""
    approximate: ClassVar[bool]
    """Whether the opener must round sums, and add noise before any other party sees them."""
    layers: ClassVar[bool]
    """Whether the protocol supports noise in layers, and can remove the layers in excess."""

    def over(self, limits: Limits) -> Summation:
        """Returns the protocol's summation within `limits`, or raises `Refused` if it has none."""


class Aborted(Exception):
    """Raised if a sum cannot be completed. Its round is charged and consumed, never repeated."""


class Accumulator(Protocol):
    """Interface of a sum that was started: rows are added, then it is closed."""

    def add(self, ids: Indices, rows: BoundedRows) -> None:
        """Adds clients' rows. Adding a client a second time raises `ValueError`.

        Args:
          ids: clients, shape [c].
          rows: their rows, shape [c, m], with a norm bound.
        """

    def close(self) -> BoundedSum:
        """Returns the total over survivors.

        Raises:
          Aborted: if the sum cannot be completed.
        """


class Summation(Protocol):
    """Interface of summations, which start sums.

    They also state the sums' norm bound, abort probability, precision and cost.
    """

    def open(self, session: Session, length: int, encoding: Encoding) -> Accumulator:
        """Starts a sum and returns its accumulator.

        Args:
          session: the context of the sum.
          length: numbers in a row.
          encoding: norm bound, resolution and noise of rows.

        Raises:
          Aborted: if the sum cannot start.
        """

    def encoded(self, encoding: Encoding, length: int) -> float:
        """Returns the norm bound of encoded rows, to which noise must be calibrated.

        Args:
          encoding: norm bound and resolution of rows.
          length: numbers in a row.

        Raises:
          Refused: if such rows cannot be summed.
        """

    def abort_probability(self, clients: int, dropout: float) -> float:
        """Upper bound on the probability that a sum aborts.

        Args:
          clients: number of sampled clients.
          dropout: probability with which each drops out independently.
        """

    def partial_probability(self, clients: int, dropout: float) -> float:
        """Upper bound on the probability that a sum aborts or lacks a part of the cohort.

        The part's clients may have sent their rows. 0 for sums that leave out no part.
        """

    def seconds(self, length: int, clients: int, noise: Share | None = None) -> float:
        """Returns the approximate seconds of a sum if all parties run on one core.

        Args:
          length: numbers in a row.
          clients: clients whose rows are added, also if sites are the parties.
          noise: share of noise that each party adds.
        """

    def step(self, encoding: Encoding, length: int) -> float | None:
        """Returns the real value of one unit of the encoded integers; None if rows are floats."""

    def download(self, clients: int, noise: Share | None = None) -> float:
        """Returns approximately the bytes that each client receives in addition to the model."""

    def upload(self, length: int, clients: int, noise: Share | None = None) -> float:
        """Returns the approximate number of bytes that each client sends for a row `[length]`."""


class SummedClients:
    """The set of clients whose rows are in a sum; each client may be added once."""

    def __init__(self) -> None:
        self._clients: set[int] = set()

    def __len__(self) -> int:
        return len(self._clients)

    def check(self, ids: Indices, rows: BoundedRows, bound: float) -> None:
        """Registers clients whose rows are about to be added.

        Args:
          ids: the clients, shape [c].
          rows: their rows, shape [c, m], with a norm bound.
          bound: norm bound for which the sum was opened.

        Raises:
          ValueError: if a client is registered twice, if the numbers of clients and rows differ, or
            if the rows' norm bound exceeds `bound`.
        """
        count = len(self._clients) + len(ids)
        self._clients.update(ids.tolist())
        if len(self._clients) != count or len(ids) != len(rows.rows):
            raise ValueError(
                "a client was registered twice, or the numbers of clients and rows differ"
            )
        if not rows.bound <= bound:
            raise ValueError(
                f"the norm bound of rows is {rows.bound:g}, but the sum was opened for {bound:g}"
            )
