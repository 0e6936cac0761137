"""Events: the release of a round, and the meaning of its guarantee.

An *event* describes one round. An event names the randomised mechanism, the sampler, and the
adjacency relation of its guarantee, so that a noise multiplier cannot be combined with another
sampler's amplification. Mechanisms emit events; users never build them to account for a run.
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
"""Neighbouring populations differ in one client, which only one of them contains."""
REPLACE_ONE = "replace-one"
"""Neighbouring populations have the same public size and differ in one client's data."""
ZERO_OUT = "zero-out"
"""Neighbouring populations have the same clients; in one of them, one
client contributes zero. Membership is public."""

CHANGE = {ADD_REMOVE: 1, ZERO_OUT: 1, REPLACE_ONE: 2}
"""L2 sensitivity of a sum of clipped rows, in clipping norms, by adjacency relation."""

_ROUNDING = 1e-9
"""Relative difference allowed between two sums of the same precisions in different orders."""


@dataclass(frozen=True)
class Event(Encoded):
    """One round's release, with the meaning of its guarantee.

    Attributes:
      release: the released quantity, with its noise and sampling.
      sampler: name of the sampler.
      relation: adjacency relation ("add/remove", "replace-one", "zero-out").
      unit: unit of privacy: "client" (all examples of one client, user-level privacy) or "example"
        (one example of one client).
      slack: upper bound on the total variation distance, on either neighbour, between `release` and
        the executed mechanism, which may abort visibly or sample its noise almost exactly. Slack is
        charged to delta (`accounting.slack`).
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
        """The release alone or, for a choice among runs, the distinct ones of a candidate run."""
        if isinstance(self.release, RepeatAndSelect):
            return tuple(release for release, _ in self.release.of)
        return (self.release,)

    @property
    def noise(self) -> Noise | None:
        """The noise of a round; None without noise.

        For a choice among runs, it is the noise of a run's first release.
        """
        return noise_of(self.releases[0])

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Event:
        """Returns the event that `to_json` wrote. Raises `Unaccountable` if `data` is invalid."""
        try:
            release = _release(data["release"])
            names = {key: data[key] for key in ("sampler", "relation", "unit")}
            slack = data.get("slack", 0.0)
        except (KeyError, TypeError) as error:
            raise Unaccountable(
                f"{data!r} does not describe an event ({error!r}); restore the ledger, or update "
                "privfed"
            ) from error
        if not all(isinstance(name, str) for name in names.values()):
            raise Unaccountable(f"sampler, relation and unit are {names}; expected texts")
        return cls(release=release, **names, slack=slack)


def _release(data: Mapping[str, Any]) -> Release | RepeatAndSelect:
    if data["kind"] == RepeatAndSelect.kind:
        return RepeatAndSelect.from_json(data)
    return release_from_json(data)


Spending = Mapping[Event, int]
"""Number of charges of each distinct event (equal events one by one would take 20 s per 1,000)."""


def summable(spending: Spending) -> Spending:
    """Returns one run's `spending` in a form whose counts may be added to those of other runs.

    Rounds with a separation are replaced by releases, as many as the rounds in which one client may
    take part. Rounds of random allocation are replaced by their epochs, since no slot of a run
    depends on those of another run. Repeated releases are counted individually. `SeveralSites` with
    one site is counted as Poisson sampling.
    """
    total: Counter[Event] = Counter()
    for event, count in _at_least_noise(spending).items():
        match event.release:
            case Separated(separation=b, of=noise):
                slack = min(1.0, b * event.slack)  # a participation stands for b rounds
                total[replace(event, release=noise, slack=slack)] += -(-count // b)
            case RandomAllocation(slots=b, epoch=epoch):
                slack = min(1.0, b * event.slack)
                total[replace(event, release=epoch, slack=slack)] += -(-count // b)
            case BufferedToeplitz() as release:
                slack = min(1.0, count * event.slack)
                total[replace(event, release=release.over(max(count, 1)), slack=slack)] += count > 0
            case Repeated(count=times, of=once):
                slack = event.slack / times  # of one repetition
                total[replace(event, release=once, slack=slack)] += times * count
            case SeveralSites(rate=rate, sites=1, of=noise):
                total[replace(event, release=PoissonSampled(rate, noise))] += count
            case _:
                total[event] += count
    return total


def _at_least_noise(spending: Spending) -> Spending:
    """Returns `spending` with the least noise and largest slack in rounds counted together.

    Rounds of a run that are counted together (equal `_without_noise`) and whose noise varies are
    post-processing of the same number of rounds with the least noise.
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
    """Returns a key that is equal for events counted together, which may differ in noise and slack.

    These are rounds of random allocation, of buffered noise, or with a separation and Gaussian
    noise. For all other events it is the event itself.
    """
    match event.release:
        case RandomAllocation() | BufferedToeplitz() | Separated(of=Gaussian()) as release:
            return replace(event, release=replace(release, of=Gaussian(1.0)), slack=0.0)
    return event


def _noise_multiplier(event: Event) -> float:
    noise = event.noise
    return noise.noise_multiplier if noise else 0.0


def best_of(spending: Spending, repetitions: Repetitions) -> Event:
    """Returns the event of releasing the best of a random number of runs, each spending `spending`.

    Visible aborts and nearly exact sampling occur in each run, so slack counts E[K] times.

    Raises:
      Unaccountable: if the events of a run have different units or adjacency relations.
    """
    meanings = {(event.unit, event.relation) for event in spending}
    if len(meanings) != 1:
        raise Unaccountable(
            f"events have several units or relations, {sorted(meanings)}, but only events that "
            "agree in both can be composed; compose each group by itself"
        )
    (unit, relation) = meanings.pop()
    each = summable(spending)
    runs = RepeatAndSelect(_by_release(each), repetitions)
    slack = repetitions.mean * sum(event.slack * count for event, count in each.items())
    sampler = ", ".join(sorted({event.sampler for event in spending}))
    return Event(runs, sampler, relation, unit, min(1.0, slack))


def within(spending: Spending, selection: RepeatAndSelect) -> bool:
    """Whether `spending` is at most what each candidate run of `selection` spends.

    True if no release is more frequent than in a candidate run. Gaussians are compared by their
    composition instead: its noise multiplier must not be smaller, up to rounding.
    """
    part, most = dict(_by_release(summable(spending))), dict(selection.of)
    counted = all(
        count <= most.get(release, 0)
        for release, count in part.items()
        if not isinstance(release, Gaussian)
    )
    return counted and _precision(part) <= _precision(most) * (1 + _ROUNDING)


def _precision(counts: Mapping[Any, int]) -> float:
    """Returns the precision 1 / z^2 of the composition of all Gaussians in `counts`."""
    noises = [
        (each.noise_multiplier, n) for each, n in counts.items() if isinstance(each, Gaussian)
    ]
    return sum(n / z**2 if z else math.inf for z, n in noises)


def _by_release(spending: Spending) -> tuple[tuple[Any, int], ...]:
    """Returns the count of each release, in a canonical order."""
    counts: Counter[Any] = Counter()
    for event, count in spending.items():
        counts[event.release] += count
    return tuple(sorted(counts.items(), key=repr))
