"""What an accountant sees of a round: its release, and what the guarantee of it means.

An *event* is one round. It names the randomised mechanism, how its participants were drawn, and
under which neighbouring relation its guarantee holds, so that nobody can pair a noise multiplier
with another sampler's amplification. Mechanisms emit events; users never build them to account
for a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from accounting.errors import Unaccountable
from accounting.releases import (
    PoissonSampled,
    Release,
    Repeated,
    Separated,
    SeveralSites,
    number,
    release_from_json,
)

ADD_REMOVE = "add/remove"
"""Two populations are neighbours when one holds exactly one client more."""
REPLACE_ONE = "replace-one"
"""Two populations of one public size are neighbours when they differ in one client's data."""
ZERO_OUT = "zero-out"
"""Two such populations, in one of which that client contributes zero. Membership is public."""

CHANGE = {ADD_REMOVE: 1, ZERO_OUT: 1, REPLACE_ONE: 2}
"""The number of clips by which one client can change a sum of clipped rows."""


@dataclass(frozen=True)
class Event:
    """One round's release, with what its guarantee protects.

    `unit` is what neighbours differ in ("client": all examples of one client, user-level privacy;
    "example": one example of one client), and `relation` how they differ. `sampler` names how the
    participants were drawn. `slack` bounds the total variation, on either neighbour, between
    `release` and what really happens: that it aborts for all to see, or draws its noise nearly
    exactly. It costs delta (`accounting.slack`).
    """

    release: Release
    sampler: str
    relation: str = ADD_REMOVE
    unit: str = "client"
    slack: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "slack", number(self.slack, "slack", 0.0, 1.0))

    def to_json(self) -> dict[str, Any]:
        return {
            "release": self.release.to_json(),
            "sampler": self.sampler,
            "relation": self.relation,
            "unit": self.unit,
            **({"slack": self.slack} if self.slack else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Event:
        """The event that `to_json` wrote. Raises `Unaccountable` where it is not one."""
        try:
            release = release_from_json(data["release"])
            names = {key: data[key] for key in ("sampler", "relation", "unit")}
            slack = data.get("slack", 0.0)
        except (KeyError, TypeError) as error:
            raise Unaccountable(f"{data!r} does not describe an event ({error!r})") from error
        if not all(isinstance(name, str) for name in names.values()):
            raise Unaccountable(f"sampler, relation and unit are {names}; expected words")
        return cls(release=release, **names, slack=slack)


Spending = Mapping[Event, int]
"""How often each distinct event happened: run-length encoded, since 1,000 single compositions take
20 s."""


def apart(spending: Spending) -> Spending:
    """One run's `spending` in a form that may be added to other runs'.

    Rounds that keep a separation are counted by how often they touch a client at most: a run's
    separation says nothing about the next one's slots. Repeated releases are counted singly, and
    clients at one site alone are simply sampled.
    """
    total: Counter[Event] = Counter()
    for event, count in spending.items():
        match event.release:
            case Separated(separation=b, of=noise):
                slack = min(1.0, b * event.slack)  # what b rounds were charged of it
                total[replace(event, release=noise, slack=slack)] += -(-count // b)
            case Repeated(count=times, of=once):
                slack = event.slack / times  # what once of them was charged of it
                total[replace(event, release=once, slack=slack)] += times * count
            case SeveralSites(rate=rate, sites=1, of=noise):
                total[replace(event, release=PoissonSampled(rate, noise))] += count
            case _:
                total[event] += count
    return total
