"""Sums of encoded rows: each client rounds its row to whole numbers, a channel adds these unseen.

The bound of the sum is the codec's, proved for the whole numbers that are really summed
(PRIVACY, section 3), and it is what noise is calibrated to.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import Field
from scipy import stats

from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.privacy.codec import Codec
from privfed.privacy.integers import Integers, Share
from privfed.privacy.mechanism import Encoding
from privfed.privacy.noise.shares import Layers
from privfed.privacy.setting import whole_sites
from privfed.secure.channel import Channel
from privfed.secure.encoded_accumulator import Arithmetic, EncodedAccumulator
from privfed.secure.identities import agreement
from privfed.secure.limits import FEWEST, Limits, sending
from privfed.secure.operations import Operations
from privfed.secure.summation import Aborted, Session


class SiteSums:
    """A channel whose parties are sites: it takes the encoded rows of clients, and keeps sums.

    What a site sends is the sum of its drawn clients' encoded rows, each bounded by itself, plus
    the site's `share` of noise, also where nobody was drawn; layers of noise are added by the
    protocol. So a client moves the total by its own encoded row, whose norm the codec bounds: no
    sum is rounded (PRIVACY, sections 9.1 and 9.3). Memory is one row `[m]` for each site.
    """

    def __init__(
        self, session: Session, codec: Codec, channel: Channel, share: Share | None
    ) -> None:
        if session.sites is None:
            raise ValueError("a sum over sites needs the site of each client")
        self._session, self._site_of = session, session.sites
        self._codec, self._channel, self._share = codec, channel, share
        self.largest = channel.largest
        self._sums = {site: np.zeros(codec.length, np.int64) for site in session.clients.tolist()}

    def send(self, client: int, row: Integers) -> None:
        self._sums[int(self._site_of[client])] += row

    def total(self) -> tuple[Integers, int]:
        session, senders = self._session, self._session.senders
        stream = f"noise/site/{session.exchange}"
        keys = session.streams.at(stream, session.round, senders).each()
        for site, site_keys in zip(senders.tolist(), keys, strict=True):
            row = self._sums.pop(site)
            if self._share:
                row += self._share.draw(site_keys, self._codec.length)
            self._channel.send(site, row)
        return self._channel.total()


COARSEST = 0.01
"""The largest step of rows without a proven norm: of updates, and weights of one and more."""


class SecureProtocol(Part):
    """What secure protocols have in common: keys of `[secure]`, and how rows become numbers."""

    bits: int = Field(32, ge=8, le=62)
    """The bits of a whole number that is summed."""
    range: float = Field(1000.0, ge=1e-6, le=1e20)
    """The largest number of a row without a proven norm: no privacy, or noise of the client's own.
    Beyond it the run is refused."""

    seen: ClassVar[str]
    opener: ClassVar[str]
    hides_rows: ClassVar[bool] = True
    approximate: ClassVar[bool] = False
    layers: ClassVar[bool] = False
    names_liars: ClassVar[bool] = False

    @property
    def may_collude(self) -> float:
        """The fraction of a cohort that may work with who opens sums, as configured."""
        return 0.0

    @property
    def relies_on(self) -> tuple[str, ...]:
        """The parties that have to follow the protocol, beyond a bounded part of the clients."""
        return ("the server to follow the protocol",)

    def begun(self, limits: Limits) -> int:
        """The smallest cohort with which a sum is begun."""
        return max(limits.minimum, FEWEST)

    def least_admitted(self, limits: Limits) -> int:
        """The smallest cohort with which a sum might be begun: configured, or what is needed."""
        return self.begun(limits)

    def fewest(self, limits: Limits) -> int:
        """The fewest survivors of any sum, whatever the cohort: with fewer it aborts."""
        return limits.least(self.begun(limits))

    def sharing(self, limits: Limits) -> int:
        """Among how many clients at least the whole of the counted noise is, none with more of it.

        The survivors, `fewest` at least. In layers nobody keeps more than one part in n - T, of n
        clients of whom T may be missing: also where more stay, as others' layers come off then.
        """
        if not limits.layered:
            return self.fewest(limits)
        begun = self.begun(limits)
        return max(1, begun - limits.missing(begun))

    def added(self, limits: Limits) -> float:
        """A lower bound on the part of counted noise that is added, as hostile clients add none.

        Of m survivors m - `hostile` add theirs. *Minimum*: m shares, of which `minimum` are
        counted, and (m - h) / minimum >= 1 - h / m. *Layers*: survivors' noise is the whole,
        whatever m, and hostile clients' parts of it as large as there are (`sharing`).
        """
        return 1.0 - limits.hostile / self.sharing(limits)

    def colluding(self, limits: Limits) -> float:
        """An upper bound on the part of counted noise known to who colludes with who opens sums.

        All of it, unless a protocol says less.
        """
        return 1.0

    def known_per_colluder(self, limits: Limits) -> float:
        """Upper bound on the part of counted noise known to colluders, over `may_collude`."""
        return 1.0

    def withstood(self, limits: Limits) -> float:
        """The largest `may_collude` with which sums within `limits` hide rows: as configured,
        unless a protocol proves more. Of sites it is their number.
        """
        return self.colluding_sites(limits.sites) if limits.sites else self.may_collude

    def honest(self, limits: Limits) -> float:
        """A lower bound on the part of counted noise added by clients who keep it to themselves.

        Those hostile and those who collude may be others.
        """
        return self.added(limits) - self.colluding(limits)

    def colluding_sites(self, sites: int) -> int:
        """k, how many of `sites` may be hostile, or work with who opens sums: one at least."""
        return whole_sites(0.0, sites)

    def least_sites(self, sites: int) -> int:
        """The fewest of `sites` that have to stay for a sum to be opened."""
        return FEWEST

    def over(self, limits: Limits) -> EncodedSummation:
        """Sums within `limits`. Raises `Refused` for limits without a proof."""
        self.refuse_limits(limits)
        return EncodedSummation(self, limits)

    @abstractmethod
    def channel(
        self, session: Session, codec: Codec, limits: Limits, layers: Layers | None = None
    ) -> Channel:
        """The channel of one session's sum. Raises `Refused`, or `Aborted` where none begins."""

    def stops(self, clients: int, dropout: float, limits: Limits) -> float:
        """An upper bound on the probability that a sum over `clients` aborts."""
        return binomial_at_most(limits.least(clients) - 1, clients, sending(dropout))

    def upload(self, codec: Codec, clients: int, layers: int = 0) -> float:
        """Bytes that a client sends, about, with so many layers of noise."""
        return codec.bits / 8 * codec.length

    def download(self, clients: int, layers: int = 0) -> float:
        """Bytes that a client is sent beside the model, about, with so many layers of noise."""
        return 0.0

    def operations(self, codec: Codec, clients: int, layers: int = 0) -> Operations:
        """What a sum of the rows of `clients` is made of beside their encoding, if all stay."""
        return Operations()

    def promise(self, clients: int, limits: Limits | None = None) -> str:
        """What holds of a sum over `clients`, in words."""
        return ""

    def refuse_limits(self, limits: Limits) -> None:
        """Raises `Refused` for limits that the protocol has no proof for."""

    def refuse_codec(self, codec: Codec, limits: Limits) -> None:
        """Raises `Refused` where the protocol cannot carry such sums."""

    def abort_where_lost(self, session: Session, limits: Limits) -> None:
        """Raises `Aborted` where too many of the session's clients leave to finish its sum."""


def binomial_at_most(count: int, clients: int, rate: float) -> float:
    """P[Binomial(clients, rate) <= count]."""
    return float(stats.binom.cdf(count, clients, rate)) if count >= 0 else 0.0


@dataclass(frozen=True)
class EncodedSummation:
    """A protocol, within limits: sums rows as whole numbers modulo 2^bits."""

    protocol: SecureProtocol
    limits: Limits

    def codec(self, encoding: Encoding, length: int) -> Codec:
        """The codec for rows `[length]`. Raises `Refused` where such rows cannot be summed."""
        bound, bits, reach = encoding.bound, self.protocol.bits, self.protocol.range
        _refuse_incomparable(encoding.noise)
        if encoding.step is not None:  # sums may wrap: the mechanism's bits allow for its noise
            fixed = Codec(bound, encoding.step, length, bits, reach, encoding.noise)
            self.protocol.refuse_codec(fixed, self.limits)
            return fixed
        most = self.limits.most_rows
        codec = _finest(bound, reach, length, bits, most, encoding.resolution)
        if bound == math.inf and codec.step > COARSEST:
            raise Refused(
                f"secure.bits is {bits}: sums of {most} rows with numbers up to "
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
        share = None if layers else encoding.noise
        channel = self.channel(session, codec, layers)
        if self.limits.sites:
            channel, share = SiteSums(session, codec, channel, share), None
        return EncodedAccumulator(session, codec, encoding.bound, share, channel)

    def channel(self, session: Session, codec: Codec, layers: Layers | None) -> Channel:
        """What carries the rows of the session's parties: the protocol, or its arithmetic."""
        if not self.limits.arithmetic:
            return self.protocol.channel(session, codec, self.limits, layers)
        lost = functools.partial(self.protocol.abort_where_lost, session, self.limits)
        return Arithmetic(session, codec, self.limits, layers, lost)

    def encoded(self, encoding: Encoding, length: int) -> float:
        codec = self.codec(encoding, length)
        return codec.bound * codec.step

    def stops(self, clients: int, dropout: float) -> float:
        if clients > self.limits.capacity:
            return 1.0
        return self.protocol.stops(clients, dropout, self.limits)

    def step(self, encoding: Encoding, length: int) -> float | None:
        return self.codec(encoding, length).step

    def download(self, clients: int, noise: Share | None = None) -> float:
        parties = self.limits.sites or clients
        return self.protocol.download(parties, _layers(noise, parties))

    def seconds(self, length: int, clients: int, noise: Share | None = None) -> float:
        return sum(part.seconds for part in self.operations(length, clients, noise))

    def operations(
        self, length: int, clients: int, noise: Share | None = None
    ) -> tuple[Operations, ...]:
        """What encoding, noise and the protocol take, if all stay; `noise` is each party's."""
        parties = self.limits.sites or clients
        summed = clients + (parties if self.limits.sites else 0)
        layers = _layers(noise, parties)
        from_seeds = layers and not self.limits.arithmetic
        fresh = parties * length if noise and not from_seeds else 0
        rows = Operations(encoded=summed * length, fresh=fresh)
        if self.limits.arithmetic:
            return (rows,)
        codec = Codec(1.0, 1.0, length, self.protocol.bits)
        return rows, self.protocol.operations(codec, parties, layers)

    def upload(self, length: int, clients: int, noise: Share | None = None) -> float:
        codec = Codec(1.0, 1.0, length, self.protocol.bits)
        parties = self.limits.sites or clients
        return self.protocol.upload(codec, parties, _layers(noise, parties))


def _layers(noise: Share | None, parties: int) -> int:
    return noise.count(parties) if isinstance(noise, Layers) else 0


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
