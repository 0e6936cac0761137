"""Sums over regions as a configurable part: guarantees, costs and refusals."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field
from scipy import stats

from privfed.core.errors import Refused
from privfed.privacy.codec import Codec
from privfed.privacy.noise.shares import Layers
from privfed.privacy.setting import SiteNoise
from privfed.secure.channel import Channel
from privfed.secure.encoded_sum import EncodedSummation, SecureProtocol
from privfed.secure.limits import Limits
from privfed.secure.masked.policy import MaskingPolicy
from privfed.secure.masked.protocol import MaskedSums
from privfed.secure.operations import Operations
from privfed.secure.regional.channel import RegionalChannel
from privfed.secure.summation import Session


class RegionalSums(SecureProtocol):
    """Sums of sums: each region's coordinator opens a masked sum; the server opens their total.

    A cohort, or the sites, are split into `regions` of equal size, each with its own masked sum,
    survivors and coordinator. The regions' sums are masked again, so that the server learns only
    the total. A region with too few survivors is left out. What a client computes, sends and
    receives depends on the size of its region, not on the number of regions.

    *What each level learns*: other clients nothing; a region's coordinator the sum of its region,
    which has the noise of its region alone; the server the total over all included regions and, if
    coordinators collude with it, the sums of their regions.

    *Trust*: up to a fraction `colluders` of each region's cohort (of its sites, and of the
    coordinators, rounded up and at least one) may collude with the server. By default a client
    relies on the coordinator of its own region not to use the region's sum (`coordinators`). Proof,
    with the noise that counts at each level: `privfed.secure.regional`.

    Source: Bonawitz et al. 2019, section 6; Bonawitz et al. 2017, figure 4.
    """

    seen: ClassVar[str] = (
        "a region's coordinator sees its region's exact sum, and the server the exact total, but "
        "no party sees a row"
    )
    opener: ClassVar[str] = "the server"
    part_openers: ClassVar[tuple[str, ...]] = ("the coordinator of a client's region",)
    names_culprits: ClassVar[bool] = True
    regions: int = Field(2, ge=2)
    """The number of regions into which a cohort is split; site i is in region i mod `regions`."""
    threshold: float = Field(0.6, gt=0, le=1)
    """The fraction of each region's cohort, and of the regions, that must survive to the end."""
    colluders: float = Field(0.1, ge=0, lt=1)
    """The fraction of each region's cohort or sites, and of the coordinators, that may collude with
    the server; of sites and of coordinators, rounded up and at least one.
    """
    threat: Literal["curious", "malicious"] = "curious"
    """Whether the server and the coordinators follow the protocol ("curious") or may deviate from
    it ("malicious").
    """
    coordinators: Literal["trusted", "curious"] = "trusted"
    """Whether a client relies on its region's coordinator not to use the region's sum ("trusted").
    Otherwise ("curious"), of noise that clients or sites add, only that of its region counts.
    """

    @property
    def may_collude(self) -> float:
        return self.colluders

    @property
    def relies_on_part_openers(self) -> bool:
        """Whether coordinators are relied upon not to use their region's sum."""
        return self.coordinators == "trusted"

    @property
    def trusted_parties(self) -> tuple[str, ...]:
        relied_on: tuple[str, ...] = ()
        if self.coordinators == "trusted":
            relied_on = ("the coordinator of a client's region not to use the region's sum",)
        if self.threat == "malicious":
            return relied_on
        return (*super().trusted_parties, "coordinators to follow the protocol", *relied_on)

    @property
    def masks(self) -> MaskedSums:
        """The masked sums of both levels."""
        names = ("bits", "range", "threshold", "colluders", "threat")
        return MaskedSums(**{name: getattr(self, name) for name in names})

    @property
    def least_regions(self) -> int:
        """T, the smallest number of regions in a total."""
        return self.masks.least_sites(self.regions)

    @property
    def _counted_regions(self) -> int:
        """The number of regions whose noise counts against the server, in a total of T regions."""
        if self.coordinators == "curious":
            return 1
        return self.least_regions - self.masks.colluding_sites(self.regions)

    def region_limits(self, limits: Limits) -> Limits:
        """Returns the limits of a region's sum: `minimum` / T survivors, and any size with a proof.

        T regions then have at least `limits.minimum` survivors. The smallest cohort that starts a
        sum is the smallest for which `MaskedSums` has a proof, so that regions seldom abort.
        `Limits.colluders` refers to each region.
        """
        minimum = -(-limits.minimum // self.least_regions)
        size = -(-limits.size // self.regions)
        region = replace(limits, minimum=minimum, size=size, admitted=0)
        if limits.sites:
            return replace(region, capacity=size, sites=size)
        return replace(region, admitted=self.masks.least_admitted(region))

    def top_limits(self, limits: Limits) -> Limits:
        """Returns the limits of the coordinators' sum."""
        return Limits(
            capacity=self.regions,
            minimum=self.least_regions,
            arithmetic=limits.arithmetic,
            size=self.regions,
            sites=self.regions,
            colluders=self.masks.colluding_sites(self.regions),
            rows=limits.most_rows,
        )

    def levels(self, limits: Limits) -> tuple[EncodedSummation, EncodedSummation]:
        """Returns the summations of a region's session and of the coordinators' session."""
        masks = self.masks
        region, top = self.region_limits(limits), self.top_limits(limits)
        return EncodedSummation(masks, region), EncodedSummation(masks, top)

    def colluding_sites(self, sites: int) -> int:
        """Returns the number of sites of each region that may deviate or collude."""
        return self.masks.colluding_sites(sites // self.regions)

    def least_sites(self, sites: int) -> int:
        """Returns the smallest number of surviving `sites`, equally many in each of T regions."""
        return self.least_regions * self.masks.least_sites(sites // self.regions)

    def top_parties(self, sites: int) -> int:
        """Returns the number of regions, whose coordinators are the parties of the top session."""
        return self.regions

    def surviving_sites(self, sites: int, tolerance: float) -> int:
        """Returns T times the least number of survivors of a region, given its own dropouts."""
        return self.least_regions * self.masks.surviving_sites(sites // self.regions, tolerance)

    def site_noise(self, limits: Limits) -> SiteNoise:
        """Returns the division of noise among sites; the noise of w (f - s) sites counts.

        f sites survive in each of T regions, at most s of them collude, and w regions count: T - k,
        or that of a client alone (`privfed.secure.regional`).
        """
        region = self.region_limits(limits)
        survivors, counted = self.masks.fewest(region), self._counted_regions
        return SiteNoise(limits.sites, survivors, region.colluders, counted)

    def colluders_tolerated(self, limits: Limits) -> float:
        """Returns the largest `colluders`, of each region if sites are the parties."""
        if limits.sites:
            return self.masks.colluders_tolerated(self.region_limits(limits))
        return super().colluders_tolerated(limits)

    def _sizes(self, clients: int) -> Counter[int]:
        """Returns how many regions a cohort of `clients` has of each size."""
        size, larger = divmod(clients, self.regions)
        return Counter({size: self.regions - larger, size + 1: larger})

    def least_cohort(self, limits: Limits) -> int:
        """Returns the smallest cohort with which T regions start a sum."""
        smallest = self.masks.least_cohort(self.region_limits(limits))
        return self.regions * (smallest - 1) + self.least_regions

    def fewest(self, limits: Limits) -> int:
        """Returns T f: f survivors in each of T regions, at least `limits.minimum`."""
        return self.least_regions * self.masks.fewest(self.region_limits(limits))

    def colluding(self, limits: Limits) -> float:
        """Upper bound on the fraction of counted noise that is not the server's unknown.

        It is 1 - (w / T) (1 - K): of T regions the noise of w counts, without the part K that their
        colluding clients know (`privfed.secure.regional`).
        """
        unknown = 1.0 - self.masks.colluding(self.region_limits(limits))
        return 1.0 - self._counted_regions / self.least_regions * unknown

    def known_per_colluder(self, limits: Limits) -> float:
        """Returns a factor that counts no noise for more than `colluders`: nothing is proved."""
        return max(1.0 / max(self.colluders, 1e-9), self.colluding(limits))

    def within(self, limits: Limits) -> MaskingPolicy:
        """Returns the requirements of a region's clients or sites, for sums within `limits`."""
        return self.masks.within(self.region_limits(limits))

    def over(self, limits: Limits) -> RegionalSummation:
        self.refuse_limits(limits)
        return RegionalSummation(self, limits)

    def channel(
        self, session: Session, codec: Codec, limits: Limits, layers: Layers | None = None
    ) -> Channel:
        self.refuse_limits(replace(limits, layered=layers is not None))

        region, top = self.levels(limits)

        def opened(level: EncodedSummation, session: Session) -> Channel:
            return level.channel(session, codec, None)

        return RegionalChannel(
            session,
            self.regions,
            self.least_regions,
            functools.partial(opened, region),
            functools.partial(opened, top),
        )

    def abort_probability(self, clients: int, dropout: float, limits: Limits) -> float:
        """Upper bound on the probability that more than R - T regions abort."""
        missing = max(self._missing(clients, dropout, limits))
        return float(stats.binom.sf(self.regions - self.least_regions, self.regions, missing))

    def partial_probability(self, clients: int, dropout: float, limits: Limits) -> float:
        """Upper bound on the probability that a region aborts (`privfed.secure.regional`)."""
        return min(1.0, sum(self._missing(clients, dropout, limits)))

    def _missing(self, clients: int, dropout: float, limits: Limits) -> tuple[float, ...]:
        """Returns upper bounds on the probability that each region aborts; they are independent."""
        region = self.region_limits(limits)
        sizes = {size: count for size, count in self._sizes(clients).items() if count}
        missing = {each: self.masks.abort_probability(each, dropout, region) for each in sizes}
        return tuple(missing[size] for size, count in sizes.items() for _ in range(count))

    def operations(self, codec: Codec, clients: int, layers: int = 0) -> Operations:
        operations = self.masks.operations(codec, self.regions)
        for size, count in self._sizes(clients).items():
            operations = operations.plus(self.masks.operations(codec, max(size, 1)), count)
        return operations

    def download(self, clients: int, layers: int = 0) -> float:
        return self.masks.download(-(-clients // self.regions))

    def upload(self, codec: Codec, clients: int, layers: int = 0) -> float:
        return self.masks.upload(codec, -(-clients // self.regions))

    def promise(self, clients: int, limits: Limits | None = None) -> str:
        """Returns a text on each level's survivors, view and colluders, for a sum over `clients`.

        Without `limits`, exactly `clients` are expected and no more are sampled.
        """
        limits = limits or Limits(clients, size=clients)
        region = self.masks.promise(-(-clients // self.regions), self.region_limits(limits))
        for hidden in ("no row", "no site's sum"):
            region = region.replace(
                f"the server learns {hidden}",
                f"its coordinator learns the region's sum, but {hidden}",
            )
        colluding = self.masks.colluding_sites(self.regions)
        how = (
            "even if it is malicious"
            if self.threat == "malicious"
            else "if it follows the protocol"
        )
        text = (
            f"at least {self.least_regions} of {self.regions} regions have to survive; in each, "
            f"{region}; the server learns the total, {how}, and the sums of regions whose "
            f"coordinators collude with it, at most {colluding}"
        )
        noised = limits.minimum and not limits.sites
        return text + (f"; {self._coordinators_text(limits)}" if noised else "")

    def _coordinators_text(self, limits: Limits) -> str:
        """Describes the noise that counts against the coordinator of a client's own region."""
        if self.coordinators == "curious":
            return "only the noise of a client's region counts, so ε holds against its coordinator"
        counted = (1 - self.masks.colluding(self.region_limits(limits))) / self.least_regions
        counted = max(0.0, counted - limits.byzantine / self.fewest(limits))
        return (
            "a client's own coordinator is relied on not to use the region's sum: against it "
            f"{counted:.1%} of the noise counts"
        )

    def refuse_limits(self, limits: Limits) -> None:
        if limits.sites % self.regions:
            raise Refused(
                f"data.sites is {limits.sites}, but the {self.regions} regions have equal numbers "
                "of sites; set data.sites to a multiple of secure.regions, or lower secure.regions"
            )
        if limits.layered:
            raise Refused(
                'privacy.sizing is "layers", but clients of a region cannot count the dropouts of '
                'other regions; set privacy.sizing = "minimum", or secure.protocol = "masks"'
            )
        if self.least_regions > self.regions:
            raise Refused(
                f"secure.regions is {self.regions}, but with "
                f"{self.masks.colluding_sites(self.regions)} colluding coordinators "
                f"{self.least_regions} would have to survive; raise secure.regions or lower "
                "secure.colluders"
            )
        region = self.region_limits(limits)
        if region.minimum > region.sites > 0:
            raise Refused(
                f"secure.minimum is {limits.minimum} surviving sites, but a sum may have "
                f"{self.least_regions} of {self.regions} regions, and these have "
                f"{self.least_regions * region.sites} sites; lower secure.minimum or raise "
                "secure.threshold"
            )
        if limits.sites:
            return  # other thresholds count sites: `privfed.plan.refusals.sites`
        self.masks.refuse_limits(region)
        expected, smallest = limits.size // self.regions, self.masks.least_cohort(region)
        if limits.size and expected < smallest:
            raise Refused(
                f"secure.regions is {self.regions}, but then the number of clients expected in a "
                f"region is {expected}, and a region's sum needs at least {smallest}; lower "
                "secure.regions, secure.minimum or secure.colluders, or raise cohort.size, "
                "privacy.tolerance or secure.threshold"
            )


class RegionalSummation(EncodedSummation):
    """Sums over regions, also if only their arithmetic is simulated: regions may be left out."""

    protocol: RegionalSums

    @property
    def of_sites(self) -> EncodedSummation:
        """The summation of one region's session."""
        return self.protocol.levels(self.limits)[0]

    @property
    def of_top(self) -> EncodedSummation:
        """The summation of the coordinators' session."""
        return self.protocol.levels(self.limits)[1]

    def channel(self, session: Session, codec: Codec, layers: Layers | None) -> Channel:
        return self.protocol.channel(session, codec, self.limits, layers)
