"""Releases that are charged per round, but whose cost depends on all rounds of a run together.

The number of participations of a client depends on the positions of rounds in a run. A run's rounds
are therefore counted first (`accounting.events.summable`), and runs are counted separately.
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
"""Factor on the noise that compensates the rounding of sums over a million rounds."""


@dataclass(frozen=True)
class Separated(Kinded):
    """The release `of`, if no client takes part twice within any `separation` consecutive rounds.

    Participation is not secret. The release is charged once per round. A client takes part in T
    consecutive rounds of a run at most ceil(T / separation) times, so T rounds are accounted for as
    that many releases `of`. Runs are counted separately.
    """

    separation: int
    of: Noise
    kind: ClassVar[str] = "separated"

    def __post_init__(self) -> None:
        object.__setattr__(self, "separation", natural_number(self.separation, "separation"))


@dataclass(frozen=True)
class AllocatedEpoch(Kinded):
    """The release `of` in each of `choices` rounds; each client takes part in one secret round.

    The round is uniform, and independent of other clients' rounds and of earlier epochs
    (`accounting.bounds.random_allocation`).
    """

    choices: int
    of: Gaussian
    kind: ClassVar[str] = "allocated_epoch"

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", natural_number(self.choices, "choices"))


@dataclass(frozen=True)
class RandomAllocation(Kinded):
    """The release `of`, if each client takes part in one secret round per epoch of `slots` rounds.

    Clients are in `groups`, which are public and take turns; a client's slot is one of the
    slots / groups rounds of its group. The release is charged once per round. The first T rounds of
    a run are ceil(T / slots) times `AllocatedEpoch`: an incomplete epoch is post-processing of a
    complete one and is charged as complete.

    All releases by a round's cohort share its slots: they are combined into one Gaussian first
    (`accounting.noises.same_cohort`) and then allocated.
    """

    slots: int
    groups: int
    of: Gaussian
    kind: ClassVar[str] = "random_allocation"

    def __post_init__(self) -> None:
        for name in ("slots", "groups"):
            object.__setattr__(self, name, natural_number(getattr(self, name), name))
        if self.slots % self.groups:
            raise Unaccountable(
                f"the number of slots is {self.slots}; expected a multiple of the {self.groups} "
                "groups"
            )

    @property
    def epoch(self) -> AllocatedEpoch:
        """Release of all `slots` rounds of an epoch together."""
        return AllocatedEpoch(self.slots // self.groups, self.of)


@dataclass(frozen=True)
class BufferedToeplitz(Kinded):
    """A round of x + C^-1 Z, with C the Toeplitz matrix of buffers `decays` and `outputs` `[d]`.

    No client takes part twice within any `separation` consecutive rounds, and participation is not
    secret. The noise multiplier of `of` is the standard deviation of Z over the product of the
    clipping norm and the norm of C's column over infinitely many rounds. The release is charged
    once per round. The first T rounds of a run are one Gaussian (`over`), since the columns of C in
    which a client takes part overlap (`accounting.bounds.toeplitz_sensitivity`).
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
        """Returns the Gaussian that composes the first `rounds` rounds of a run."""
        return Gaussian(self.of.noise_multiplier / self.growth(rounds) * _OUTWARD)

    def growth(self, rounds: int) -> float:
        """Returns the sensitivity of `rounds` rounds divided by the norm of one column."""
        return _growth(self.decays, self.outputs, self.separation, rounds)


@functools.lru_cache(maxsize=1024)
def _growth(
    decays: tuple[float, ...], outputs: tuple[float, ...], separation: int, rounds: int
) -> float:
    sensitivity = buffered_sensitivity(decays, outputs, separation, rounds)
    return sensitivity / column_norm(decays, outputs)
