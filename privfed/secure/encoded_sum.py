"""Sums of encoded rows: clients round rows to integers, which a channel sums without revealing.

The codec bounds the norm of these integers (rules of proof, section 3), and noise covers it.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from privfed.core.deferred import stats
from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.privacy.codec import Codec
from privfed.privacy.integers import Share
from privfed.privacy.mechanism import Encoding
from privfed.privacy.noise.shares import Layers
from privfed.privacy.setting import SiteNoise, whole_sites
from privfed.secure.agreement import agreement
from privfed.secure.channel import Channel
from privfed.secure.encoded_accumulator import Arithmetic, EncodedAccumulator
from privfed.secure.limits import FEWEST, Limits, sending
from privfed.secure.operations import Operations
from privfed.secure.site_sums import SiteSums
from privfed.secure.summation import Aborted, Session

COARSEST = 0.01
"""Largest rounding step permitted for rows without a norm bound, whose weights are at least 1."""


class SecureProtocol(Part):
    """Contract and base of protocols that reveal no client's row, for any cohort within `Limits`.

    Its fields are the common keys of `[secure]`. Rows are encoded as integers. *Counted noise* is
    the part of distributed noise that the privacy guarantee relies on. The *opener* is the party
    that unmasks or decrypts sums; by default it is assumed to know all noise. If sites are the
    parties, "clients" are the sites.
    """

    bits: int = Field(32, ge=8, le=62)
    """Bits of each integer that is summed."""
    range: float = Field(1000.0, ge=1e-6, le=1e20)
    """Largest absolute value in a row without a proven norm; larger values end the run."""

    seen: ClassVar[str]
    opener: ClassVar[str]
    hides_rows: ClassVar[bool] = True
    approximate: ClassVar[bool] = False
    layers: ClassVar[bool] = False
    names_culprits: ClassVar[bool] = False
    """Whether the protocol identifies Byzantine parties; later rounds then exclude them."""
    part_openers: ClassVar[tuple[str, ...]] = ()
    """Parties, in addition to the opener, that open the sum of a part of the cohort."""

    @property
    def relies_on_part_openers(self) -> bool:
        """Whether epsilon assumes that `part_openers` do not use their sums."""
        return True

    @property
    def may_collude(self) -> float:
        """Fraction of a cohort that may collude with the party that opens sums, as configured."""
        return 0.0

    @property
    def trusted_parties(self) -> tuple[str, ...]:
        """Trusted parties other than clients, such as "the server to follow the protocol"."""
        return ("the server to follow the protocol",)

    def least_cohort(self, limits: Limits) -> int:
        """Returns the smallest cohort with which a sum starts."""
        return max(limits.minimum, FEWEST)

    def least_admitted(self, limits: Limits) -> int:
        """Returns the smallest permitted `Limits.admitted` (smallest cohort that starts a sum)."""
        return self.least_cohort(limits)

    def fewest(self, limits: Limits) -> int:
        """Returns the smallest number of survivors of a completed sum, over all cohorts."""
        return limits.minimum if limits.sites else limits.least(self.least_cohort(limits))

    def sharing(self, limits: Limits) -> int:
        """Returns n such that each surviving client adds at most 1/n of the noise in a sum.

        Without layers, n is the smallest number of survivors (`fewest`). With layers, T of the m
        clients that start may drop out, and n = m - T: no client keeps more than 1/(m - T) of the
        noise. This also holds with more survivors, because they then keep fewer layers.
        """
        if not limits.layered:
            return self.fewest(limits)
        least_cohort = self.least_cohort(limits)
        return max(1, least_cohort - limits.missing(least_cohort))

    def added(self, limits: Limits) -> float:
        """Lower bound on the fraction of counted noise that is added if Byzantine clients add none.

        Of m survivors, h = `byzantine` add no noise. *Minimum*: m - h shares are added and
        `minimum` are counted, and (m - h) / minimum >= 1 - h / m. *Layers*: the survivors' noise
        would total the counted noise for every m, and lacks h shares of at most the largest size
        (`sharing`).
        """
        return 1.0 - limits.byzantine / self.sharing(limits)

    def colluding(self, limits: Limits) -> float:
        """Upper bound on the fraction of counted noise known to the opener with its colluders.

        Counted noise is the part that the guarantee relies on; the opener unmasks or decrypts sums.
        The default is 1; protocols override it with the bound that they prove.
        """
        return 1.0

    def known_per_colluder(self, limits: Limits) -> float:
        """Returns b: colluders, a fraction c of a cohort, know at most b * c of counted noise."""
        return 1.0

    def colluders_tolerated(self, limits: Limits) -> float:
        """Returns the largest `may_collude` with which sums within `limits` hide rows.

        This is the configured value unless a protocol proves more. With sites, the result is a
        number of sites, not a fraction.
        """
        return self.colluding_sites(limits.sites) if limits.sites else self.may_collude

    def honest(self, limits: Limits) -> float:
        """Lower bound on the fraction of counted noise added by honest, non-colluding clients.

        Byzantine clients and colluding clients may be disjoint, so both fractions are subtracted.
        """
        return self.added(limits) - self.colluding(limits)

    def colluding_sites(self, sites: int) -> int:
        """Returns k >= 1, the number of `sites` that may deviate or collude with the opener."""
        return whole_sites(0.0, sites)

    def least_sites(self, sites: int) -> int:
        """Returns the smallest number of surviving `sites` with which a sum is opened."""
        return FEWEST

    def top_parties(self, sites: int) -> int:
        """Returns the number of parties whose sums the opener adds: the `sites`."""
        return sites

    def surviving_sites(self, sites: int, tolerance: float) -> int:
        """Returns the least number of survivors if a fraction `tolerance` of `sites` drops out.

        It is at least the number with which a sum is opened.
        """
        return max(sites - math.floor(tolerance * sites + 1e-9), self.least_sites(sites))

    def site_noise(self, limits: Limits) -> SiteNoise:
        """Returns the division of noise among sites, and the number of sites whose noise counts."""
        return SiteNoise(limits.sites, limits.minimum, limits.colluders)

    def over(self, limits: Limits) -> EncodedSummation:
        """Returns the summation within `limits`; raises `Refused` for limits without a proof."""
        self.refuse_limits(limits)
        return EncodedSummation(self, limits)

    @abstractmethod
    def channel(
        self, session: Session, codec: Codec, limits: Limits, layers: Layers | None = None
    ) -> Channel:
        """Returns the channel for one session's sum.

        Args:
          session: the round, exchange and cohort of the sum.
          codec: the encoding of rows as integers.
          limits: the limits of the sum.
          layers: removable layers of each party's noise; None if the noise is not layered.

        Raises:
          Refused: if the protocol does not support such a sum.
          Aborted: if the sum cannot start.
        """

    def abort_probability(self, clients: int, dropout: float, limits: Limits) -> float:
        """Upper bound on the abort probability of a sum over `clients` with this `dropout` rate."""
        return binomial_at_most(limits.least(clients) - 1, clients, sending(dropout))

    def partial_probability(self, clients: int, dropout: float, limits: Limits) -> float:
        """Upper bound on the probability that a sum aborts or lacks a part of the cohort.

        The part's clients may have sent their rows. 0 for protocols that leave out no part.
        """
        return 0.0

    def upload(self, codec: Codec, clients: int, layers: int = 0) -> float:
        """Returns the approximate number of bytes that each client sends in a sum.

        `layers` is the number of layers of a client's noise.
        """
        return codec.bits / 8 * codec.length

    def download(self, clients: int, layers: int = 0) -> float:
        """Returns approximately the bytes that each client receives in addition to the model."""
        return 0.0

    def operations(self, codec: Codec, clients: int, layers: int = 0) -> Operations:
        """Returns the operations of a sum over `clients`, without dropouts and without encoding."""
        return Operations()

    def promise(self, clients: int, limits: Limits | None = None) -> str:
        """Returns a text that states the guarantee for a sum over `clients`; "" unless overridden.

        Without `limits`, exactly `clients` are expected.
        """
        return ""

    def refuse_limits(self, limits: Limits) -> None:
        """Raises `Refused` for limits for which this protocol has no proof; by default for none."""

    def refuse_codec(self, codec: Codec, limits: Limits) -> None:
        """Raises `Refused` if the protocol cannot represent sums of the codec's rows."""

    def abort_where_lost(self, session: Session, limits: Limits) -> None:
        """Raises `Aborted` if so many of the session's clients drop out that the sum would abort.

        Simulations without cryptography call it.
        """


def binomial_at_most(count: int, clients: int, rate: float) -> float:
    """Returns P[Binomial(clients, rate) <= count]."""
    return float(stats.binom.cdf(count, clients, rate)) if count >= 0 else 0.0


@dataclass(frozen=True)
class EncodedSummation:
    """Sums rows as integers modulo 2^bits, by a `protocol` and within `limits`."""

    protocol: SecureProtocol
    limits: Limits

    @property
    def of_sites(self) -> EncodedSummation:
        """The summation of a session whose parties are sites; another one if they form regions."""
        return self

    @property
    def of_top(self) -> EncodedSummation:
        """The summation of the session that the server opens; another one if there are regions."""
        return self

    def codec(self, encoding: Encoding, length: int) -> Codec:
        """Returns the codec for rows `[length]`. Raises `Refused` if such rows cannot be summed."""
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
                f"secure.bits is {bits}, but sums of {most} rows with numbers up to "
                f"secure.range = {reach:g} then have steps of {codec.step:g}, which is too "
                f"coarse for updates (expected at most {COARSEST:g}); raise secure.bits, or "
                "lower secure.range or secure.capacity"
            )
        return codec

    def open(self, session: Session, length: int, encoding: Encoding) -> EncodedAccumulator:
        if len(session.clients) > self.limits.capacity:
            raise Aborted("more clients were sampled than secure.capacity allows")
        codec = self.codec(encoding, length)
        layers = encoding.noise if isinstance(encoding.noise, Layers) else None
        share = None if layers else encoding.noise
        channel = self.channel(session, codec, layers)
        if self.limits.sites:
            channel, share = SiteSums(session, codec, channel, share), None
        return EncodedAccumulator(session, codec, encoding.bound, share, channel)

    def channel(self, session: Session, codec: Codec, layers: Layers | None) -> Channel:
        """Returns the session's channel; it runs all parties unless `limits.arithmetic` is set."""
        if not self.limits.arithmetic:
            return self.protocol.channel(session, codec, self.limits, layers)
        lost = functools.partial(self.protocol.abort_where_lost, session, self.limits)
        return Arithmetic(session, codec, self.limits, layers, lost)

    def encoded(self, encoding: Encoding, length: int) -> float:
        codec = self.codec(encoding, length)
        return codec.bound * codec.step

    def abort_probability(self, clients: int, dropout: float) -> float:
        if clients > self.limits.capacity:
            return 1.0
        return self.protocol.abort_probability(clients, dropout, self.limits)

    def partial_probability(self, clients: int, dropout: float) -> float:
        return self.protocol.partial_probability(clients, dropout, self.limits)

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
        """Returns the operations of encoding and of all parties' `noise`, then of the protocol.

        With `limits.arithmetic` there is no second item.
        """
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
    """Raises `Refused` unless `noise` is hashable and of a type that `agreement` can hash."""
    try:
        hash(noise)
        agreement(noise=noise)
    except TypeError as error:
        raise Refused(
            f"the share of noise is a {type(noise).__qualname__}, but parties of a secure sum "
            f"cannot compare such objects ({error}); expected a frozen dataclass or a Part, whose "
            "fields are numbers, texts, None, or tuples of these"
        ) from error


_finest = functools.lru_cache(maxsize=256)(Codec.finest)
