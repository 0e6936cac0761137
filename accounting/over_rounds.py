"""Releases that are charged once a round, and cost what a run's rounds make of them together.

How often a client takes part follows from where rounds lie in a run, so that a run's rounds are
counted first (`accounting.events.apart`), and two runs do not share a count.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

from accounting.bounds.toeplitz_sensitivity import (
    buffered_sensitivity,
    column_norm,
    refuse_unproven,
)
from accounting.documents import Kinded
from accounting.errors import Unaccountable
from accounting.noises import Gaussian, Noise, natural_number, number

_OUTWARD = 1 - 1e-9
"""By what part noise counts less, which exceeds the rounding of sums over a million rounds."""


@dataclass(frozen=True)
class Separated(Kinded):
    """`of`, where no client takes part twice in any `separation` rounds in a row.

    Who takes part when is no secret. It is charged once a round. T of them, one after the other in
    one run, touch a client at most ceil(T / separation) times, and are that many Gaussians. Two
    runs do not share a count: see `apart`.
    """

    separation: int
    of: Noise
    kind: ClassVar[str] = "separated"

    def __post_init__(self) -> None:
        object.__setattr__(self, "separation", natural_number(self.separation, "separation"))


@dataclass(frozen=True)
class AllocatedEpoch(Kinded):
    """`of`, in each of `choices` rounds, of which each client takes part in a secret one.

    It is uniform, and independent of others' and of earlier ones
    (`accounting.bounds.random_allocation`).
    """

    choices: int
    of: Gaussian
    kind: ClassVar[str] = "allocated_epoch"

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", natural_number(self.choices, "choices"))


@dataclass(frozen=True)
class RandomAllocation(Kinded):
    """`of`, where each client takes part in one secret round of each epoch of `slots` rounds.

    Clients are in `groups`, which are public, whose rounds take turns; a client's slot is one of
    the slots / groups rounds of its group. It is charged once a round. T of them, from the first
    round of a run on, are ceil(T / slots) times `AllocatedEpoch`: an epoch that has begun counts
    whole, of which it is post-processing.

    All releases by a round's cohort share its slots: they are one Gaussian first
    (`accounting.noises.same_cohort`), and allocated then.
    """

    slots: int
    groups: int
    of: Gaussian
    kind: ClassVar[str] = "random_allocation"

    def __post_init__(self) -> None:
        for name in ("slots", "groups"):
            object.__setattr__(self, name, natural_number(getattr(self, name), name))
        if self.slots % self.groups:
            raise Unaccountable(f"{self.slots} slots are no whole number for {self.groups} groups")

    @property
    def epoch(self) -> AllocatedEpoch:
        """What all `slots` rounds of an epoch are together."""
        return AllocatedEpoch(self.slots // self.groups, self.of)


@dataclass(frozen=True)
class BufferedToeplitz(Kinded):
    """A round of x + C^-1 Z, C having the column of buffers with `decays` and `outputs` `[d]`.

    No client takes part twice in any `separation` rounds in a row, and who does when is no secret.
    The noise multiplier of `of` is the deviation of Z over the clip and the norm of C's column over
    infinitely many rounds. It is charged once a round; T of them, from the first round of a run on,
    are one Gaussian (`over`), since columns of C that a client meets overlap
    (`accounting.bounds.toeplitz_sensitivity`).
    """

    decays: tuple[float, ...]
    outputs: tuple[float, ...]
    separation: int
    of: Gaussian
    kind: ClassVar[str] = "buffered_toeplitz"

    def __post_init__(self) -> None:
        for name in ("decays", "outputs"):
            numbers = tuple(number(x, name, -1e9, 1e9) for x in getattr(self, name))
            object.__setattr__(self, name, numbers)
        object.__setattr__(self, "separation", natural_number(self.separation, "separation"))
        refuse_unproven(self.decays, self.outputs)

    def over(self, rounds: int) -> Gaussian:
        """What the first `rounds` rounds of a run are together."""
        return Gaussian(self.of.noise_multiplier / self.growth(rounds) * _OUTWARD)

    def growth(self, rounds: int) -> float:
        """The sensitivity of `rounds` rounds, over the norm of one column."""
        return _growth(self.decays, self.outputs, self.separation, rounds)


@functools.lru_cache(maxsize=1024)
def _growth(
    decays: tuple[float, ...], outputs: tuple[float, ...], separation: int, rounds: int
) -> float:
    sensitivity = buffered_sensitivity(decays, outputs, separation, rounds)
    return sensitivity / column_norm(decays, outputs)
