"""Releases of a round, as frozen values: the noise, and the sampling of participants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from accounting.documents import Kinded
from accounting.errors import Unaccountable
from accounting.noises import (
    DiscreteGaussians,
    Gaussian,
    Noise,
    Skellam,
    natural_number,
    number,
)
from accounting.over_rounds import AllocatedEpoch, BufferedToeplitz, RandomAllocation, Separated

MOST_ROWS = 1024
"""Largest number of independently sampled rows of one client that is accounted for."""


@dataclass(frozen=True)
class PoissonSampled(Kinded):
    """The release `of` on a cohort that includes each client independently with probability `rate`.

    Several exchanges over *one* cohort are not several such releases: combine them first into one
    `Gaussian` (see `same_cohort`), or into integer noise with its `exchanges`.
    """

    rate: float
    of: Noise
    kind: ClassVar[str] = "poisson"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", number(self.rate, "sampling rate", 0.0, 1.0))


@dataclass(frozen=True)
class SeveralSites(Kinded):
    """The release `of`, if a client has up to `sites` rows, each sampled independently at `rate`.

    The rows are at as many sites, or are a user's examples under example-level sampling.

    The noise multiplier of `of` is relative to the bound of *one row*; removing the client removes
    all its rows (`accounting.bounds.several_sites`).
    """

    rate: float
    sites: int
    of: Gaussian
    kind: ClassVar[str] = "several_sites"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", number(self.rate, "sampling rate", 0.0, 1.0))
        object.__setattr__(
            self, "sites", natural_number(self.sites, "sites of a client", MOST_ROWS)
        )


@dataclass(frozen=True)
class TruncatedPoisson(Kinded):
    """`PoissonSampled` with at most `cap` participants, chosen uniformly if more were sampled.

    `clients` bounds the population. Adding a client may displace another one, so this event has its
    own proof (see `accounting.bounds.pld`).
    """

    rate: float
    cap: int
    clients: int
    of: Gaussian
    kind: ClassVar[str] = "truncated_poisson"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", number(self.rate, "sampling rate", 0.0, 1.0))
        for name in ("cap", "clients"):
            object.__setattr__(self, name, natural_number(getattr(self, name), name))


@dataclass(frozen=True)
class WithoutReplacement(Kinded):
    """The release `of` on a uniform sample of exactly `cohort` of exactly `clients` clients."""

    cohort: int
    clients: int
    of: Gaussian
    kind: ClassVar[str] = "without_replacement"

    def __post_init__(self) -> None:
        for name in ("cohort", "clients"):
            object.__setattr__(self, name, natural_number(getattr(self, name), name))
        if self.cohort > self.clients:
            raise Unaccountable(
                f"the cohort is {self.cohort}, but there are {self.clients} clients; expected 1 to "
                f"{self.clients}"
            )


@dataclass(frozen=True)
class Repeated(Kinded):
    """The release `of`, made `count` times, each time on an independent sample.

    Examples are the local steps of a silo's round, or a client's rows at several sites.
    """

    count: int
    of: PoissonSampled
    kind: ClassVar[str] = "repeated"

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", natural_number(self.count, "count"))


@dataclass(frozen=True)
class Unprotected(Kinded):
    """A release without noise or without a bound: epsilon is infinite."""

    reason: str
    kind: ClassVar[str] = "unprotected"


Sampled = PoissonSampled | SeveralSites | TruncatedPoisson | WithoutReplacement
OverRounds = Separated | RandomAllocation | AllocatedEpoch | BufferedToeplitz
Release = Noise | Sampled | OverRounds | Repeated | Unprotected


def noise_of(release: Release) -> Noise | None:
    """Returns a release's noise, without sampling or repetition; None for `Unprotected`."""
    match release:
        case Gaussian() | Skellam() | DiscreteGaussians():
            return release
        case Unprotected():
            return None
        case Repeated(of=sampled):
            return sampled.of
        case sampled:
            return sampled.of


_INSIDE: dict[type[Any], Any] = {
    Gaussian: None,
    Skellam: None,
    DiscreteGaussians: None,
    PoissonSampled: Noise,
    SeveralSites: Gaussian,
    TruncatedPoisson: Gaussian,
    WithoutReplacement: Gaussian,
    Separated: Noise,
    RandomAllocation: Gaussian,
    AllocatedEpoch: Gaussian,
    BufferedToeplitz: Gaussian,
    Repeated: PoissonSampled,
    Unprotected: None,
}
"""Every class of releases, with the type of its field `of`."""
_BY_KIND = {release.kind: release for release in _INSIDE}


def release_from_json(data: Mapping[str, Any]) -> Release:
    """Returns the release that the JSON object `data` states.

    Raises `Unaccountable`, `KeyError` or `TypeError` if `data` is invalid.
    """
    kind = data["kind"]
    if kind not in _BY_KIND:
        raise Unaccountable(
            f"release kind {kind!r} is not known to this version of privfed; update privfed"
        )
    release = _BY_KIND[kind]
    values = {key: value for key, value in data.items() if key != "kind"}
    if _INSIDE[release] is not None:
        inside = release_from_json(data["of"])
        if not isinstance(inside, _INSIDE[release]):
            raise Unaccountable(
                f"a {kind} release of a {inside.kind} release is not known to this version of "
                "privfed; update privfed"
            )
        values["of"] = inside
    made: Release = release(**values)
    return made
