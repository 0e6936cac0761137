"""Sums of encoded rows: each client rounds its row to whole numbers, a channel adds these unseen.

The bound of the sum is the codec's, proved for the whole numbers that are really summed
(PRIVACY, section 3), and it is what noise is calibrated to.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from pydantic import Field
from scipy import stats

from privfed.deferred import torch
from privfed.errors import Refused
from privfed.parts import Part
from privfed.privacy.codec import Codec, Whole
from privfed.privacy.mechanism import BoundedRows, BoundedSum, Encoding
from privfed.privacy.noise.shares import Layers
from privfed.secure.agreement import agreement
from privfed.secure.dropout import SENDS, sending
from privfed.secure.limits import FEWEST, Limits
from privfed.secure.plain_sum import Once
from privfed.secure.summation import Aborted, Session
from privfed.streams import Keys
from privfed.vector import Indices

COARSEST = 0.01
"""The largest step of rows without a proven norm: of updates, and weights of one and more."""


class Channel(Protocol):
    """Carries whole numbers of clients to their sum. Whoever runs it sees no client's numbers."""

    most: float
    """The largest number that it takes from a client."""

    def send(self, client: int, whole: Whole) -> None:
        """One client's encoded row `[m]`, to which layers of noise are yet to come."""
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
    opener: ClassVar[str]
    hides_rows: ClassVar[bool] = True
    approximate: ClassVar[bool] = False
    layers: ClassVar[bool] = False

    def begun(self, limits: Limits) -> int:
        """The smallest cohort with which a sum is begun."""
        return max(limits.minimum, FEWEST)

    def least_admitted(self, limits: Limits) -> int:
        """The smallest cohort with which a sum might be begun: configured, or what is needed."""
        return self.begun(limits)

    def fewest(self, limits: Limits) -> int:
        """The fewest survivors of any sum, whatever the cohort: with fewer it aborts."""
        return limits.least(self.begun(limits))

    def added(self, limits: Limits) -> float:
        """Of the noise that is counted, at least this part is added, as hostile clients add none.

        Of m survivors m - `hostile` add theirs, and m is at least `fewest`. *Minimum*: m shares,
        of which `minimum` are counted, and (m - h) / minimum >= 1 - h / m. *Layers*: survivors'
        noise is the whole, whatever m.
        """
        return 1.0 - limits.hostile / self.fewest(limits)

    def colluding(self, limits: Limits) -> float:
        """The part of it that those who collude with who opens sums know at most: any, unless
        a protocol says less.
        """
        return 1.0

    def honest(self, limits: Limits) -> float:
        """Of the noise that is counted, at least this part is added by clients who keep it to
        themselves: those hostile and those who collude may be others.
        """
        return self.added(limits) - self.colluding(limits)

    def over(self, limits: Limits) -> EncodedSummation:
        self.refuse_limits(limits)
        return EncodedSummation(self, limits)

    @abstractmethod
    def channel(
        self, session: Session, codec: Codec, limits: Limits, layers: Layers | None = None
    ) -> Channel: ...

    def stops(self, clients: int, dropout: float, limits: Limits) -> float:
        """At least the probability that a sum over `clients` aborts."""
        return at_most(limits.least(clients) - 1, clients, sending(dropout))

    def upload(self, codec: Codec, clients: int) -> float:
        """Bytes that a client sends, about."""
        return codec.bits / 8 * codec.length

    def download(self, clients: int) -> float:
        """Bytes that a client is sent beside the model, about."""
        return 0.0

    def seconds(self, codec: Codec, clients: int) -> float:
        """What a sum over `clients` takes when all of it runs on one core, about."""
        return 2e-8 * clients * codec.length

    def promise(self, clients: int, limits: Limits | None = None) -> str:
        """What holds of a sum over `clients`, in words."""
        return ""

    def refuse_limits(self, limits: Limits) -> None:
        """Raises `Refused` for limits that the protocol has no proof for."""

    def refuse_codec(self, codec: Codec, limits: Limits) -> None:
        """Raises `Refused` where the protocol cannot carry such sums."""

    def abort_where_lost(self, session: Session, limits: Limits) -> None:
        """Raises `Aborted` where too many of the session's clients leave to finish its sum."""


def at_most(count: int, clients: int, rate: float) -> float:
    """P[Binomial(clients, rate) <= count]."""
    return float(stats.binom.cdf(count, clients, rate)) if count >= 0 else 0.0


@dataclass(frozen=True)
class EncodedSummation:
    """A protocol, within limits: sums rows as whole numbers modulo 2^bits."""

    protocol: SecureProtocol
    limits: Limits

    def codec(self, encoding: Encoding, length: int) -> Codec:
        """For rows `[length]`. Raises `Refused`."""
        bound, bits, reach = encoding.bound, self.protocol.bits, self.protocol.range
        _refuse_incomparable(encoding.noise)
        if encoding.step is not None:  # sums may wrap: the mechanism's bits allow for its noise
            fixed = Codec(bound, encoding.step, length, bits, reach, encoding.noise)
            self.protocol.refuse_codec(fixed, self.limits)
            return fixed
        codec = _finest(bound, reach, length, bits, self.limits.capacity, encoding.resolution)
        if bound == math.inf and codec.step > COARSEST:
            raise Refused(
                f"secure.bits is {bits}: sums of {self.limits.capacity} rows with numbers up to "
                f"secure.range = {reach:g} have steps of {codec.step:g}, which no update survives; "
                f"expected at most {COARSEST:g}: raise secure.bits, or lower secure.range or "
                "secure.capacity"
            )
        return codec

    def open(self, session: Session, length: int, encoding: Encoding) -> EncodedAccumulator:
        if len(session.clients) > self.limits.capacity:
            raise Aborted("more clients were drawn than secure.capacity allows")
        codec = self.codec(encoding, length)
        layers = encoding.noise if isinstance(encoding.noise, Layers) else None
        if self.limits.arithmetic:
            channel: Channel = Arithmetic(session, codec, self.protocol, self.limits, layers)
        else:
            channel = self.protocol.channel(session, codec, self.limits, layers)
        return EncodedAccumulator(session, codec, encoding, channel)

    def encoded(self, encoding: Encoding, length: int) -> float:
        codec = self.codec(encoding, length)
        return codec.bound * codec.step

    def stops(self, clients: int, dropout: float) -> float:
        if clients > self.limits.capacity:
            return 1.0
        return self.protocol.stops(clients, dropout, self.limits)

    def step(self, encoding: Encoding, length: int) -> float | None:
        return self.codec(encoding, length).step

    def download(self, clients: int) -> float:
        return self.protocol.download(clients)

    def seconds(self, length: int, clients: int) -> float:
        codec = Codec(1.0, 1.0, length, self.protocol.bits)
        arithmetic = SecureProtocol.seconds(self.protocol, codec, clients)
        return arithmetic if self.limits.arithmetic else self.protocol.seconds(codec, clients)

    def upload(self, length: int, clients: int) -> float:
        codec = Codec(1.0, 1.0, length, self.protocol.bits)
        return self.protocol.upload(codec, clients)


def _refuse_incomparable(noise: object) -> None:
    """Clients and whoever opens sums compare the shares of noise that they are configured with."""
    try:
        hash(noise)
        agreement(noise=noise)
    except TypeError as error:
        raise Refused(
            f"the share of noise is a {type(noise).__qualname__}, which parties of a secure sum "
            f"cannot compare ({error}); expected a frozen dataclass or a Part, whose fields are "
            "numbers, texts, None, or tuples of such"
        ) from error


_finest = functools.lru_cache(maxsize=256)(Codec.finest)


class EncodedAccumulator:
    """Encodes each client's row, as the client would, and hands it to the channel."""

    def __init__(
        self, session: Session, codec: Codec, encoding: Encoding, channel: Channel
    ) -> None:
        self._session, self._codec, self._channel = session, codec, channel
        self._bound = encoding.bound
        self._noise = None if isinstance(encoding.noise, Layers) else encoding.noise
        self._seen = Once()

    def add(self, ids: Indices, rows: BoundedRows) -> None:
        self._seen.check(ids, rows, self._bound)
        session, codec = self._session, self._codec
        keys = session.streams.at(f"noise/rounding/{session.exchange}", session.round, ids)
        values = rows.rows.detach().cpu().double().numpy()
        hostile = np.zeros(len(ids), bool) if rows.hostile is None else rows.hostile
        for client, row, own, lies in zip(ids.tolist(), values, keys.each(), hostile, strict=True):
            if lies:
                whole = codec.saturated(row, int(hostile.sum()), self._channel.most)
                self._channel.send(client, whole)
                continue
            if codec.clip == np.inf and not bool(np.abs(row).max(initial=0.0) <= codec.reach):
                raise Refused(
                    f"what a client would send is beyond secure.range = {codec.reach:g}, or not "
                    "finite: training diverged, or the range is too small for weighted updates; "
                    "lower client.lr, or raise secure.range (and secure.bits)"
                )
            whole = codec.encode(row, own)
            if self._noise:
                whole = whole + self._noise.draw(own.derived(b"noise"), codec.length)
            self._channel.send(client, whole)

    def close(self) -> BoundedSum:
        whole, survivors = self._channel.total()
        total = torch.from_numpy(self._codec.decode(whole))
        return BoundedSum(total, self._codec.bound * self._codec.step, survivors)


def senders(session: Session) -> int:
    """How many of the session's clients send their row."""
    if not len(session.leaves):
        return len(session.clients)
    return int(np.isin(session.leaves, SENDS).sum())


def noise_keys(session: Session, client: int) -> Keys:
    """The randomness of one client's layers of noise."""
    ids = np.array([client])
    keys = session.streams.at(f"noise/layers/{session.exchange}", session.round, ids)
    return next(keys.each())


class Arithmetic:
    """No cryptography: encoded rows summed modulo 2^bits, and aborts where the protocol would."""

    most = math.inf

    def __init__(
        self,
        session: Session,
        codec: Codec,
        protocol: SecureProtocol,
        limits: Limits,
        layers: Layers | None,
    ) -> None:
        self._session, self._codec, self._protocol = session, codec, protocol
        self._limits, self._layers, self._count = limits, layers, 0
        self._sum = np.zeros(codec.length, dtype=np.uint64)
        if layers:  # what so few keep of a sum that nobody finishes may be too much to draw
            self._abort_where_lost(senders(session))

    def send(self, client: int, whole: Whole) -> None:
        if self._layers:
            clients = len(self._session.clients)
            kept = self._layers.kept(clients, clients - senders(self._session))
            keys = noise_keys(self._session, client)
            whole = whole + kept.draw(keys, self._codec.length)
        self._sum += self._codec.wrap(whole)
        self._count += 1

    def total(self) -> tuple[Whole, int]:
        self._abort_where_lost(self._count)
        return self._codec.unwrap(self._codec.wrap(self._sum.astype(np.int64))), self._count

    def _abort_where_lost(self, count: int) -> None:
        if count < self._limits.least(len(self._session.clients)):
            raise Aborted("fewer clients sent than a sum needs")
        self._protocol.abort_where_lost(self._session, self._limits)
