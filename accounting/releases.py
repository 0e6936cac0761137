"""What one round released, as frozen values: its noise, and how its participants were drawn.

Numbers are converted to Python floats and ints on construction: dp-accounting silently drops terms
whose noise multiplier is an int or a NumPy scalar.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from accounting.errors import Unaccountable

LARGEST_NOISE = 1e9
MOST_SITES = 64
"""The most sites of one client that are accounted for."""
_MOST_CLIENTS = 10**12


@dataclass(frozen=True)
class Gaussian:
    """A vector plus N(0, (z s)^2 I), where s bounds the L2 change that one client can make.

    `noise_multiplier` is z = standard deviation / s. Under add/remove and zero-out s is the
    clipping norm, under replace-one twice that: here, once, and nowhere else. Zero means that no
    noise was added: such a release has no finite epsilon.
    """

    noise_multiplier: float
    kind: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        z = number(self.noise_multiplier, "noise multiplier", 0.0, LARGEST_NOISE)
        object.__setattr__(self, "noise_multiplier", z)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "noise_multiplier": self.noise_multiplier}


@dataclass(frozen=True)
class Skellam:
    """A whole-number vector plus Skellam noise of `variance` in each coordinate, `exchanges` times.

    One client changes the vector by at most `l2` in L2 and `l1` in L1 norm. Exchanges over one
    cohort are one release: their divergences add up first, and are sampled then.
    """

    variance: float
    l2: float
    l1: float
    exchanges: int = 1
    kind: ClassVar[str] = "skellam"

    def __post_init__(self) -> None:
        for name in ("variance", "l2", "l1"):
            object.__setattr__(self, name, number(getattr(self, name), name, 0.0, 1e60))
        object.__setattr__(self, "exchanges", _count(self.exchanges, "exchanges"))

    @property
    def noise_multiplier(self) -> float:
        """The multiplier of a like Gaussian: deviation over the change, all exchanges together."""
        return math.sqrt(self.variance / self.exchanges) / self.l2 if self.l2 else math.inf

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **vars(self)}


@dataclass(frozen=True)
class DiscreteGaussians:
    """The same with `clients` discrete Gaussians of `deviation` each, in `length` dimensions."""

    deviation: float
    clients: int
    l2: float
    l1: float
    length: int
    exchanges: int = 1
    kind: ClassVar[str] = "discrete_gaussians"

    def __post_init__(self) -> None:
        for name in ("deviation", "l2", "l1"):
            object.__setattr__(self, name, number(getattr(self, name), name, 0.0, 1e30))
        for name in ("clients", "length", "exchanges"):
            object.__setattr__(self, name, _count(getattr(self, name), name))

    @property
    def noise_multiplier(self) -> float:
        """The multiplier of the Gaussian it resembles."""
        spread = self.deviation * math.sqrt(self.clients / self.exchanges)
        return spread / self.l2 if self.l2 else math.inf

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **vars(self)}


IntegerNoise = Skellam | DiscreteGaussians
Noise = Gaussian | IntegerNoise


@dataclass(frozen=True)
class PoissonSampled:
    """`of`, run on a cohort into which each client enters by an independent coin of bias `rate`.

    Several exchanges over *one* cohort are not several such events: collapse them into one
    `Gaussian` (see `same_cohort`), or integer noise with its `exchanges`, first, then sample.
    """

    rate: float
    of: Noise
    kind: ClassVar[str] = "poisson"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", number(self.rate, "sampling rate", 0.0, 1.0))

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "rate": self.rate, "of": self.of.to_json()}


@dataclass(frozen=True)
class SeveralSites:
    """`of`, where a client has up to `sites` rows, each drawn by its own coin of bias `rate`.

    The noise multiplier of `of` is over the bound of *one row*, of which removing the client
    removes all (`accounting.several_sites`).
    """

    rate: float
    sites: int
    of: Gaussian
    kind: ClassVar[str] = "several_sites"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", number(self.rate, "sampling rate", 0.0, 1.0))
        object.__setattr__(self, "sites", _count(self.sites, "sites of a client", MOST_SITES))

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "rate": self.rate,
            "sites": self.sites,
            "of": self.of.to_json(),
        }


@dataclass(frozen=True)
class TruncatedPoisson:
    """`PoissonSampled`, but of a cohort above `cap` only `cap` take part, drawn uniformly.

    `clients` bounds the population. Adding a client may push another one out, so this is an event
    of its own (see `accounting.pld`).
    """

    rate: float
    cap: int
    clients: int
    of: Gaussian
    kind: ClassVar[str] = "truncated_poisson"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", number(self.rate, "sampling rate", 0.0, 1.0))
        for name in ("cap", "clients"):
            object.__setattr__(self, name, _count(getattr(self, name), name))

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "rate": self.rate,
            "cap": self.cap,
            "clients": self.clients,
            "of": self.of.to_json(),
        }


@dataclass(frozen=True)
class WithoutReplacement:
    """`of`, run on a uniformly drawn set of exactly `cohort` of exactly `clients` clients."""

    cohort: int
    clients: int
    of: Gaussian
    kind: ClassVar[str] = "without_replacement"

    def __post_init__(self) -> None:
        for name in ("cohort", "clients"):
            object.__setattr__(self, name, _count(getattr(self, name), name))
        if self.cohort > self.clients:
            raise Unaccountable(f"a cohort of {self.cohort} cannot be drawn of {self.clients}")

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "cohort": self.cohort,
            "clients": self.clients,
            "of": self.of.to_json(),
        }


@dataclass(frozen=True)
class Separated:
    """`of`, where no client takes part twice in any `separation` rounds in a row.

    Who takes part when is no secret. It is charged once a round. T of them, one after the other in
    one run, touch a client at most ceil(T / separation) times, and are that many Gaussians. Two
    runs do not share a count: see `apart`.
    """

    separation: int
    of: Noise
    kind: ClassVar[str] = "separated"

    def __post_init__(self) -> None:
        object.__setattr__(self, "separation", _count(self.separation, "separation"))

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "separation": self.separation, "of": self.of.to_json()}


@dataclass(frozen=True)
class Repeated:
    """`of`, `count` times, each on a draw of its own.

    The local steps of a silo's round, or a client's rows at several sites.
    """

    count: int
    of: PoissonSampled
    kind: ClassVar[str] = "repeated"

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", _count(self.count, "count"))

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "count": self.count, "of": self.of.to_json()}


@dataclass(frozen=True)
class Unprotected:
    """A release without any noise or without a bound: epsilon is infinite, and visibly so."""

    reason: str
    kind: ClassVar[str] = "unprotected"

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "reason": self.reason}


Sampled = PoissonSampled | SeveralSites | TruncatedPoisson | WithoutReplacement | Separated
Release = Noise | Sampled | Repeated | Unprotected


def same_cohort(noise_multiplier: float, exchanges: int) -> Gaussian:
    """`exchanges` Gaussian releases over one cohort, each at multiplier z, as one Gaussian.

    Gaussian mechanisms compose exactly (adaptively too: Dong, Roth & Su 2022, Corollary 3.3):
    k of them at z are one at z / sqrt(k).
    """
    return Gaussian(float(noise_multiplier) / math.sqrt(exchanges))


def noise_of(release: Release) -> Noise | None:
    """The noise inside a release, None where there is none."""
    match release:
        case Gaussian() | Skellam() | DiscreteGaussians():
            return release
        case Unprotected():
            return None
        case Repeated(of=sampled):
            return sampled.of
        case sampled:
            return sampled.of


def release_from_json(data: Mapping[str, Any]) -> Release:
    """The release that `to_json` wrote. Raises `Unaccountable`, `KeyError` or `TypeError`."""
    match data["kind"]:
        case Gaussian.kind:
            return Gaussian(data["noise_multiplier"])
        case PoissonSampled.kind:
            return PoissonSampled(data["rate"], _noise(data, Noise))
        case SeveralSites.kind:
            return SeveralSites(data["rate"], data["sites"], _noise(data, Gaussian))
        case Skellam.kind:
            return Skellam(**{key: data[key] for key in data if key != "kind"})
        case DiscreteGaussians.kind:
            return DiscreteGaussians(**{key: data[key] for key in data if key != "kind"})
        case TruncatedPoisson.kind:
            return TruncatedPoisson(
                data["rate"], data["cap"], data["clients"], _noise(data, Gaussian)
            )
        case WithoutReplacement.kind:
            return WithoutReplacement(data["cohort"], data["clients"], _noise(data, Gaussian))
        case Separated.kind:
            return Separated(data["separation"], _noise(data, Noise))
        case Repeated.kind:
            step = release_from_json(data["of"])
            if not isinstance(step, PoissonSampled):
                raise Unaccountable(f"a repeated {step.kind} release is not known here")
            return Repeated(data["count"], step)
        case Unprotected.kind:
            return Unprotected(data["reason"])
        case kind:
            raise Unaccountable(f"release kind {kind!r} is not known to this version of privfed")


def _noise(data: Mapping[str, Any], kinds: Any) -> Any:
    inner = release_from_json(data["of"])
    if not isinstance(inner, kinds):
        raise Unaccountable(f"a {data['kind']} {inner.kind} release is not known here")
    return inner


def number(value: Any, what: str, low: float, high: float) -> float:
    """`value` as a Python float in [low, high]. Raises `Unaccountable`."""
    numeric = isinstance(value, int | float) or hasattr(value, "__float__")
    parsed = float(value) if numeric and not isinstance(value, bool) else None
    if parsed is None or not low <= parsed <= high:
        raise Unaccountable(f"{what} is {value!r}; expected a number in [{low:g}, {high:g}]")
    return parsed


def _count(value: Any, what: str, most: int = _MOST_CLIENTS) -> int:
    count = number(value, what, 1, most)
    if count != int(count):
        raise Unaccountable(f"{what} is {value!r}; expected a whole number")
    return int(count)
