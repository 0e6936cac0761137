"""What a draw's guarantee rests on beside the noise: promises that whoever runs it has to keep."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from accounting.events import ADD_REMOVE, REPLACE_ONE
from accounting.over_rounds import RandomAllocation, Separated
from accounting.releases import (
    PoissonSampled,
    Release,
    SeveralSites,
    TruncatedPoisson,
    WithoutReplacement,
)
from privfed.sampling.cohort import Witness

SECRET, ATTENDANCE, SEPARATION = "secret", "attendance", "separation"
PROMISES: Mapping[str, str] = MappingProxyType(
    {
        SECRET: "nobody who reads the releases learns who takes part when, or how many do",
        ATTENDANCE: "clients answer in the round that they are drawn for and in no other; who "
        "cannot is missing from it, for reasons that tell of nobody's data",
        SEPARATION: "clients keep their numbers, and it is enforced that none takes part more "
        "often than its slots allow",
    }
)
"""What may be promised, in general words."""
_AWAY = (
    "a client answers in the round that it is drawn for and in no other; who cannot is missing "
    "from it, for reasons that tell of nobody's data"
)


def assumptions(witness: Witness) -> dict[str, str]:
    """The promises that the proof of this draw needs, by name, and what each means for it.

    Without amplification a fixed schedule may be public, and who comes too late for a round may be
    known: it is enough that nobody takes part too often.
    """
    return _of_release(witness.release)


def _of_release(release: Release | None) -> dict[str, str]:
    match release:
        case PoissonSampled() | TruncatedPoisson() | SeveralSites():
            return {SECRET: PROMISES[SECRET], ATTENDANCE: _AWAY}
        case WithoutReplacement():
            who = "nobody who reads the releases learns who takes part when; how many do is public"
            return {SECRET: who, ATTENDANCE: _AWAY}
        case RandomAllocation(slots=b):
            once = (
                "clients keep their numbers, and it is enforced that each takes part once at most "
                f"in an epoch of {b} rounds, in its slot"
            )
            return {SECRET: PROMISES[SECRET], ATTENDANCE: _AWAY, SEPARATION: once}
        case Separated(separation=b) if b > 1:
            often = (
                "clients keep their numbers, and it is enforced that each takes part once at most "
                f"in any {b} rounds in a row; when may be public"
            )
            return {SEPARATION: often}
    return {}


def membership(relation: str, clients: int) -> str:
    """Whether it may be known who is a client at all, in words."""
    if relation == ADD_REMOVE:
        return "who is a client stays secret"
    public = f"who the {clients} clients are may be public, and there are exactly so many"
    if relation == REPLACE_ONE:
        return f"{public}; a client's data are replaced, which takes noise for two clips"
    return f"{public}; what is hidden is all that a client contributes"
