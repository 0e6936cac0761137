"""Sums of encoded rows: each client rounds its row to whole numbers, a channel adds these unseen.

The bound of the sum is the codec's, proved for the whole numbers that are really summed
(PRIVACY, section 3), and it is what noise is calibrated to.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from pydantic import Field
from scipy import stats

from privfed.errors import Refused
from privfed.parts import Part
from privfed.privacy.mechanism import BoundedRows, BoundedSum
from privfed.secure.codec import Codec, Whole
from privfed.secure.dropout import sending
from privfed.secure.limits import Limits
from privfed.secure.plain import Once
from privfed.secure.summation import Aborted, Indices, Session

FEWEST = 2
"""A sum of one row would be that row."""


class Channel(Protocol):
    """Carries whole numbers of clients to their sum. Whoever runs it sees no client's numbers."""

    def send(self, client: int, whole: Whole) -> None:
        """One client's encoded row `[m]`."""
        ...

    def total(self) -> tuple[Whole, int]:
        """The sum of those who sent and stayed, and how many they are. Raises `Aborted`."""
        ...


class SecureProtocol(Part):
    """What secure protocols have in common: keys of `[secure]`, and how rows become numbers."""

    bits: int = Field(32, ge=8, le=62)
    range: float = Field(1000.0, ge=1e-6, le=1e20)
    """The largest number of a row without a proven norm: no privacy, or noise of the client's own.
    Beyond it the run is refused."""

    seen: ClassVar[str]
    """Who sees what, in words."""

    def over(self, limits: Limits) -> EncodedSummation:
        self.refuse_limits(limits)
        return EncodedSummation(self, limits)

    @abstractmethod
    def channel(self, session: Session, codec: Codec, limits: Limits) -> Channel: ...

    def stops(self, clients: int, dropout: float, minimum: int) -> float:
        """At least the probability that a sum over `clients` aborts."""
        return at_most(max(minimum, FEWEST) - 1, clients, sending(dropout))

    def upload(self, codec: Codec, clients: int) -> float:
        """Bytes that a client sends, about."""
        return codec.bits / 8 * codec.length

    def seconds(self, codec: Codec, clients: int) -> float:
        """What a sum over `clients` takes when all of it runs on one core, about."""
        return 2e-8 * clients * codec.length

    def promise(self, clients: int) -> str:
        """What holds of a sum over `clients`, in words."""
        return ""

    def refuse_limits(self, limits: Limits) -> None:
        """Raises `Refused` for limits that the protocol has no proof for."""

    def abort_where_lost(self, session: Session) -> None:
        """Raises `Aborted` where too many of the session's clients leave to finish its sum."""


def at_most(count: int, clients: int, rate: float) -> float:
    """P[Binomial(clients, rate) <= count]."""
    return float(stats.binom.cdf(count, clients, rate)) if count >= 0 else 0.0


@dataclass(frozen=True)
class EncodedSummation:
    """A protocol, within limits: sums rows as whole numbers modulo 2^bits."""

    protocol: SecureProtocol
    limits: Limits

    def codec(self, bound: float, resolution: float, length: int) -> Codec:
        """For rows `[length]` of norm at most `bound`. Raises `Refused`."""
        return _finest(
            bound,
            self.protocol.range,
            length,
            self.protocol.bits,
            self.limits.capacity,
            resolution,
        )

    def open(
        self, session: Session, length: int, bound: float, resolution: float
    ) -> EncodedAccumulator:
        if len(session.clients) > self.limits.capacity:
            raise Aborted("more clients were drawn than secure.capacity allows")
        codec = self.codec(bound, resolution, length)
        if self.limits.arithmetic:
            arithmetic = Arithmetic(session, codec, self.protocol, self.limits)
            return EncodedAccumulator(session, codec, bound, arithmetic)
        channel = self.protocol.channel(session, codec, self.limits)
        return EncodedAccumulator(session, codec, bound, channel)

    def encoded(self, bound: float, resolution: float, length: int) -> float:
        codec = self.codec(bound, resolution, length)
        return codec.bound * codec.step

    def stops(self, clients: int, dropout: float) -> float:
        if clients > self.limits.capacity:
            return 1.0
        return self.protocol.stops(clients, dropout, self.limits.minimum)

    def seconds(self, length: int, clients: int) -> float:
        codec = Codec(1.0, 1.0, length, self.protocol.bits)
        arithmetic = SecureProtocol.seconds(self.protocol, codec, clients)
        return arithmetic if self.limits.arithmetic else self.protocol.seconds(codec, clients)

    def upload(self, length: int, clients: int) -> float:
        codec = Codec(1.0, 1.0, length, self.protocol.bits)
        return self.protocol.upload(codec, clients)


_finest = functools.lru_cache(maxsize=256)(Codec.finest)


class EncodedAccumulator:
    """Encodes each client's row, as the client would, and hands it to the channel."""

    def __init__(self, session: Session, codec: Codec, bound: float, channel: Channel) -> None:
        self._session, self._codec, self._bound, self._channel = session, codec, bound, channel
        self._seen = Once()

    def add(self, ids: Indices, rows: BoundedRows) -> None:
        self._seen.check(ids, rows, self._bound)
        session, codec = self._session, self._codec
        keys = session.streams.at(f"noise/rounding/{session.exchange}", session.round, ids)
        values = rows.rows.detach().cpu().double().numpy()
        for client, row, own in zip(ids.tolist(), values, keys.each(), strict=True):
            if codec.clip == np.inf and not bool(np.abs(row).max(initial=0.0) <= codec.reach):
                raise Refused(
                    f"what a client would send is beyond secure.range = {codec.reach:g}, or not "
                    "finite: training diverged, or the range is too small for weighted updates; "
                    "lower client.lr, or raise secure.range (and secure.bits)"
                )
            self._channel.send(client, codec.encode(row, own))

    def close(self) -> BoundedSum:
        whole, survivors = self._channel.total()
        total = torch.from_numpy(self._codec.decode(whole))
        return BoundedSum(total, self._codec.bound * self._codec.step, survivors)


class Arithmetic:
    """No cryptography: encoded rows summed modulo 2^bits, and aborts where the protocol would."""

    def __init__(
        self, session: Session, codec: Codec, protocol: SecureProtocol, limits: Limits
    ) -> None:
        self._session, self._codec, self._protocol = session, codec, protocol
        self._limits, self._count = limits, 0
        self._sum = np.zeros(codec.length, dtype=np.uint64)

    def send(self, client: int, whole: Whole) -> None:
        self._sum += self._codec.wrap(whole)
        self._count += 1

    def total(self) -> tuple[Whole, int]:
        if self._count < max(self._limits.minimum, FEWEST):
            raise Aborted("fewer clients sent than a sum needs")
        self._protocol.abort_where_lost(self._session)
        return self._codec.unwrap(self._codec.wrap(self._sum.astype(np.int64))), self._count
