"""What was released, as frozen values: the only thing an accountant ever sees.

An *event* is one round. It names the randomised mechanism, how its participants were drawn, and
under which neighbouring relation its guarantee holds, so that nobody can pair a noise multiplier
with another sampler's amplification. Mechanisms emit events; users never build them to account
for a run.

Numbers are converted to Python floats on construction: dp-accounting silently drops terms whose
noise multiplier is an int or a NumPy scalar.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from accounting.errors import Unaccountable

LARGEST_NOISE = 1e9
ADD_REMOVE = "add/remove"
"""Two populations are neighbours when one holds exactly one client more."""


def _number(value: Any, what: str, low: float, high: float) -> float:
    number = float(value) if isinstance(value, int | float) or hasattr(value, "__float__") else None
    if number is None or isinstance(value, bool) or not low <= number <= high:
        raise Unaccountable(f"{what} is {value!r}; expected a number in [{low:g}, {high:g}]")
    return number


@dataclass(frozen=True)
class Gaussian:
    """A vector plus N(0, (z s)^2 I), where s bounds the L2 change that one client can make.

    `noise_multiplier` is z = standard deviation / s. Under add/remove s is the clipping norm.
    Zero means that no noise was added: such a release has no finite epsilon.
    """

    noise_multiplier: float
    kind: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        z = _number(self.noise_multiplier, "noise multiplier", 0.0, LARGEST_NOISE)
        object.__setattr__(self, "noise_multiplier", z)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "noise_multiplier": self.noise_multiplier}


@dataclass(frozen=True)
class PoissonSampled:
    """`of`, run on a cohort into which each client enters by an independent coin of bias `rate`.

    Several Gaussian exchanges over *one* cohort are not several such events: collapse them into
    one `Gaussian` (see `same_cohort`) first, then sample.
    """

    rate: float
    of: Gaussian
    kind: ClassVar[str] = "poisson"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _number(self.rate, "sampling rate", 0.0, 1.0))

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "rate": self.rate, "of": self.of.to_json()}


@dataclass(frozen=True)
class Unprotected:
    """A release without any noise or without a bound: epsilon is infinite, and visibly so."""

    reason: str
    kind: ClassVar[str] = "unprotected"

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "reason": self.reason}


Release = Gaussian | PoissonSampled | Unprotected


@dataclass(frozen=True)
class Event:
    """One round's release, with what its guarantee protects.

    `unit` is what one neighbour differs in ("client": all examples of one client, user-level
    privacy). `relation` is how (`ADD_REMOVE`). `sampler` names how the participants were drawn.
    """

    release: Release
    sampler: str
    relation: str = ADD_REMOVE
    unit: str = "client"

    def to_json(self) -> dict[str, Any]:
        return {
            "release": self.release.to_json(),
            "sampler": self.sampler,
            "relation": self.relation,
            "unit": self.unit,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Event:
        """The event that `to_json` wrote. Raises `Unaccountable` where it is not one."""
        try:
            release = _release_from_json(data["release"])
            names = {key: data[key] for key in ("sampler", "relation", "unit")}
        except (KeyError, TypeError) as error:
            raise Unaccountable(f"{data!r} does not describe an event ({error!r})") from error
        return cls(release=release, **names)


def same_cohort(noise_multiplier: float, exchanges: int) -> Gaussian:
    """`exchanges` Gaussian releases over one cohort, each at multiplier z, as one Gaussian.

    Gaussian mechanisms compose exactly (adaptively too: Dong, Roth & Su 2022, Corollary 3.3):
    k of them at z are one at z / sqrt(k).
    """
    return Gaussian(float(noise_multiplier) / math.sqrt(exchanges))


def _release_from_json(data: Mapping[str, Any]) -> Release:
    match data["kind"]:
        case Gaussian.kind:
            return Gaussian(data["noise_multiplier"])
        case PoissonSampled.kind:
            inner = _release_from_json(data["of"])
            if not isinstance(inner, Gaussian):
                raise Unaccountable(f"a Poisson-sampled {inner.kind} release is not known here")
            return PoissonSampled(data["rate"], inner)
        case Unprotected.kind:
            return Unprotected(data["reason"])
        case kind:
            raise Unaccountable(f"release kind {kind!r} is not known to this version of privfed")
