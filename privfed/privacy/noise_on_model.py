"""The noise that a whole run leaves on its model, by which draws and mechanisms are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol, Self, runtime_checkable

from privfed.core.streams import Streams
from privfed.privacy.mechanism import Mechanism


@runtime_checkable
class CorrelatedOverRounds(Protocol):
    """A mechanism whose noise in one round takes off some of that of earlier ones."""

    def noise_on_model(self, rounds: int) -> float:
        """The rms noise on the sums of the first 1 to `rounds` releases, in clips, over that of
        independent noise of a deviation of one clip.
        """
        ...


def noise_on_model(mechanism: Mechanism, rounds: int, size: int) -> float | None:
    """The rms deviation on sums of the first 1 to `rounds` releases of a calibrated `mechanism`.

    In clips, on each coordinate, for cohorts of `size` expected clients: a model that sums releases
    has it, but for the divisor. Independent noise of deviation z has z sqrt((rounds + 1) / 2). None
    where noise is correlated over rounds, and the mechanism does not say how.
    """
    summed = math.sqrt((rounds + 1) / 2)
    if isinstance(mechanism, CorrelatedOverRounds):
        return mechanism.noise_on_model(rounds) * summed
    return None if mechanism.remembers else mechanism.noise_on_update(size) * summed


def stays_on_model(mechanism: Mechanism, rounds: int, size: int) -> float:
    """The part of each round's noise that is on the model in the end: 1 where it is independent.

    It is the rms over the rounds, and 1 where a mechanism does not say how its noise is correlated.
    """
    if not isinstance(mechanism, CorrelatedOverRounds):
        return 1.0
    noise = mechanism.noise_on_update(size)
    return mechanism.noise_on_model(rounds) / noise if noise else 1.0


def remembered_rows(mechanism: Mechanism) -> int:
    """How many rows of earlier noise, as long as a message, its next noise is made of."""
    memory = mechanism.memory(Streams(0), 0)
    return memory.remembers if memory else 0


@runtime_checkable
class SolvedForRun(Protocol):
    """A mechanism that solves for constants of its noise when a run starts.

    They are keys of its own, so that the run's file and its ledger state them, and a resume has the
    same ones, for however many rounds. They follow from public constants.
    """

    def solved_for_run(self, rounds: int, separation: int) -> Self:
        """The mechanism with constants for so many `rounds` that train, in any `separation` of
        which in a row a client takes part once; those that are given stay.
        """
        ...

    def solution(self) -> Mapping[str, Any]:
        """What was solved for, and for how many rounds, as the ledger states it."""
        ...

    def span(self) -> str:
        """Over which rounds noise is correlated, in words."""
        ...


@runtime_checkable
class InBands(CorrelatedOverRounds, Protocol):
    """A mechanism whose noise is correlated over so many bands as a client's rounds are apart."""

    bands: int
    """How many; 0: as many as the draw allows, or as need the least noise."""

    def in_bands(self, bands: int) -> Self:
        """The mechanism with so many bands."""
        ...
