"""What an accountant sees of a round: its release, and what the guarantee of it means.

An *event* is one round. It names the randomised mechanism, how its participants were drawn, and
under which neighbouring relation its guarantee holds, so that nobody can pair a noise multiplier
with another sampler's amplification. Mechanisms emit events; users never build them to account
for a run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from accounting.choosing.repeat_and_select import RepeatAndSelect
from accounting.choosing.repetitions import Repetitions
from accounting.documents import UNLESS_EMPTY, Encoded
from accounting.errors import Unaccountable
from accounting.noises import Gaussian, Noise, number
from accounting.over_rounds import BufferedToeplitz, RandomAllocation, Separated
from accounting.releases import (
    PoissonSampled,
    Release,
    Repeated,
    SeveralSites,
    noise_of,
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

_ROUNDING = 1e-9
"""By what share the variances of one Gaussian, added up in another order, may differ."""


@dataclass(frozen=True)
class Event(Encoded):
    """One round's release, with what its guarantee protects.

    `unit` is what neighbours differ in ("client": all examples of one client, user-level privacy;
    "example": one example of one client), and `relation` how they differ. `sampler` names how the
    participants were drawn. `slack` bounds the total variation, on either neighbour, between
    `release` and what really happens: that it aborts for all to see, or draws its noise nearly
    exactly. It costs delta (`accounting.slack`).
    """

    release: Release | RepeatAndSelect
    sampler: str
    relation: str = ADD_REMOVE
    unit: str = "client"
    slack: float = field(default=0.0, metadata=UNLESS_EMPTY)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slack", number(self.slack, "slack", 0.0, 1.0))

    @property
    def releases(self) -> tuple[Release, ...]:
        """The single releases that it is made of: one, or those of each run to choose from."""
        if isinstance(self.release, RepeatAndSelect):
            return tuple(release for release, _ in self.release.of)
        return (self.release,)

    @property
    def noise(self) -> Noise | None:
        """The noise of a round; None where there is none. That of a choice is its runs' first."""
        return noise_of(self.releases[0])

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Event:
        """The event that `to_json` wrote. Raises `Unaccountable` where it is not one."""
        try:
            release = _release(data["release"])
            names = {key: data[key] for key in ("sampler", "relation", "unit")}
            slack = data.get("slack", 0.0)
        except (KeyError, TypeError) as error:
            raise Unaccountable(f"{data!r} does not describe an event ({error!r})") from error
        if not all(isinstance(name, str) for name in names.values()):
            raise Unaccountable(f"sampler, relation and unit are {names}; expected words")
        return cls(release=release, **names, slack=slack)


def _release(data: Mapping[str, Any]) -> Release | RepeatAndSelect:
    if data["kind"] == RepeatAndSelect.kind:
        return RepeatAndSelect.from_json(data)
    return release_from_json(data)


Spending = Mapping[Event, int]
"""How often each distinct event happened: run-length encoded, since 1,000 single compositions take
20 s."""


def apart(spending: Spending) -> Spending:
    """One run's `spending` in a form that may be added to other runs'.

    Rounds that keep a separation are counted by how often they touch a client at most, and those of
    random slots by their epochs: a run says nothing about the next one's slots. Repeated releases
    are counted singly, and clients at one site alone are simply sampled.
    """
    total: Counter[Event] = Counter()
    for event, count in _at_least_noise(spending).items():
        match event.release:
            case Separated(separation=b, of=noise):
                slack = min(1.0, b * event.slack)  # what b rounds were charged of it
                total[replace(event, release=noise, slack=slack)] += -(-count // b)
            case RandomAllocation(slots=b, epoch=epoch):
                slack = min(1.0, b * event.slack)
                total[replace(event, release=epoch, slack=slack)] += -(-count // b)
            case BufferedToeplitz() as release:
                slack = min(1.0, count * event.slack)
                total[replace(event, release=release.over(max(count, 1)), slack=slack)] += count > 0
            case Repeated(count=times, of=once):
                slack = event.slack / times  # what once of them was charged of it
                total[replace(event, release=once, slack=slack)] += times * count
            case SeveralSites(rate=rate, sites=1, of=noise):
                total[replace(event, release=PoissonSampled(rate, noise))] += count
            case _:
                total[event] += count
    return total


def _at_least_noise(spending: Spending) -> Spending:
    """`spending`, in which rounds that are counted together have one noise: the least of theirs.

    Rounds of one run that hang together, with noise that varies among them, are post-processing of
    as many with the least of it. The slack of each is then the largest.
    """
    together: dict[Event, list[tuple[Event, int]]] = {}
    for event, count in ((event, count) for event, count in spending.items() if count > 0):
        together.setdefault(_without_noise(event), []).append((event, count))
    least: Counter[Event] = Counter()
    for alike in together.values():
        event = min((event for event, _ in alike), key=_noise_multiplier)
        slack = max(event.slack for event, _ in alike)
        least[replace(event, slack=slack)] += sum(count for _, count in alike)
    return least


def _without_noise(event: Event) -> Event:
    """What rounds that are counted together share; other rounds share all of it."""
    match event.release:
        case RandomAllocation() | BufferedToeplitz() | Separated(of=Gaussian()) as release:
            return replace(event, release=replace(release, of=Gaussian(1.0)), slack=0.0)
    return event


def _noise_multiplier(event: Event) -> float:
    noise = event.noise
    return noise.noise_multiplier if noise else 0.0


def best_of(spending: Spending, repetitions: Repetitions) -> Event:
    """The event of releasing the best of a random number of runs, each of which spends `spending`.

    The runs' aborts and nearly exact draws happen in each of them: slack counts E[K] times. Raises
    `Unaccountable` where the parts of a run protect different things.
    """
    meanings = {(event.unit, event.relation) for event in spending}
    if len(meanings) != 1:
        raise Unaccountable(f"events of different meaning cannot be composed: {sorted(meanings)}")
    (unit, relation) = meanings.pop()
    each = apart(spending)
    runs = RepeatAndSelect(_by_release(each), repetitions)
    slack = repetitions.mean * sum(event.slack * count for event, count in each.items())
    sampler = ", ".join(sorted({event.sampler for event in spending}))
    return Event(runs, sampler, relation, unit, min(1.0, slack))


def within(spending: Spending, selection: RepeatAndSelect) -> bool:
    """Whether `spending` is a part of what each run of `selection` spends.

    Gaussians are compared as the one that they are together, of which less noise is more.
    """
    part, most = dict(_by_release(apart(spending))), dict(selection.of)
    counted = all(
        count <= most.get(release, 0)
        for release, count in part.items()
        if not isinstance(release, Gaussian)
    )
    return counted and _precision(part) <= _precision(most) * (1 + _ROUNDING)


def _precision(counts: Mapping[Any, int]) -> float:
    """One over the variance of the one Gaussian that all Gaussians of `counts` are together."""
    noises = [
        (each.noise_multiplier, n) for each, n in counts.items() if isinstance(each, Gaussian)
    ]
    return sum(n / z**2 if z else math.inf for z, n in noises)


def _by_release(spending: Spending) -> tuple[tuple[Any, int], ...]:
    """How often each release happened, in an order that hangs on nothing else."""
    counts: Counter[Any] = Counter()
    for event, count in spending.items():
        counts[event.release] += count
    return tuple(sorted(counts.items(), key=repr))
