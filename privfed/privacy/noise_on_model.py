"""The noise on a run's final model, for comparing samplers and mechanisms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol, Self, runtime_checkable

from privfed.core.streams import Streams
from privfed.privacy.mechanism import Mechanism


@runtime_checkable
class CorrelatedOverRounds(Protocol):
    """A mechanism whose noise in one round cancels part of the noise of earlier rounds."""

    def noise_on_model(self, rounds: int) -> float:
        """Returns the noise on sums of the first t releases, as the root mean square over all t.

        t runs from 1 to `rounds`. The value is relative to independent noise with a standard
        deviation of one clipping norm.
        """


def noise_on_model(mechanism: Mechanism, rounds: int, size: int) -> float | None:
    """Returns the noise on sums of the first t releases, as the root mean square over all t.

    The noise is the standard deviation per coordinate, in clipping norms, for t = 1 to `rounds`. Up
    to the divisor, it is the noise on a model that sums releases. For independent noise of standard
    deviation z it is z sqrt((rounds + 1) / 2).

    Args:
      mechanism: a calibrated mechanism.
      rounds: number of training rounds.
      size: expected cohort size.

    Returns:
      The standard deviation, or None if noise is correlated over rounds in an unknown way.
    """
    summed = math.sqrt((rounds + 1) / 2)
    if isinstance(mechanism, CorrelatedOverRounds):
        return mechanism.noise_on_model(rounds) * summed
    return None if mechanism.remembers else mechanism.noise_on_update(size) * summed


def model_noise_fraction(mechanism: Mechanism, rounds: int, size: int) -> float:
    """Returns the fraction of each round's noise that remains on the final model.

    The fraction is a root mean square over the rounds. The result is 1 for independent noise, and
    if a mechanism does not state how its noise is correlated.
    """
    if not isinstance(mechanism, CorrelatedOverRounds):
        return 1.0
    noise = mechanism.noise_on_update(size)
    return mechanism.noise_on_model(rounds) / noise if noise else 1.0


def stored_noise_rows(mechanism: Mechanism) -> int:
    """Returns the number of noise vectors that a run stores to compute the next one.

    It is 0 if rounds are independent.
    """
    memory = mechanism.memory(Streams(0), 0)
    return memory.remembers if memory else 0


@runtime_checkable
class SolvedForRun(Protocol):
    """A mechanism that optimises constants of its noise when a run starts.

    The constants are keys of the mechanism, so that the run's file and its ledger state them, and a
    resume uses the same constants, for any number of rounds. Their values depend on public
    constants only.
    """

    def solved_for_run(self, rounds: int, separation: int) -> Self:
        """Returns the mechanism with optimised constants; those already configured are kept.

        Args:
          rounds: number of training rounds.
          separation: number of consecutive rounds in which a client takes part at most once.
        """

    def solution(self) -> Mapping[str, Any]:
        """Returns the optimised constants by name, and as "solved_for" their number of rounds.

        The first line of the run's ledger states this mapping as "correlation".
        The number is 0 if constants were configured without it.
        """

    def span(self) -> str:
        """Returns a phrase for reports: the number of rounds over which noise is correlated."""


@runtime_checkable
class InBands(CorrelatedOverRounds, Protocol):
    """A mechanism whose noise is correlated over a configurable number of rounds, its bands."""

    bands: int
    """Number of bands; 0: the number is chosen (`Banded.bands`)."""

    def in_bands(self, bands: int) -> Self:
        """Returns the mechanism with `bands` bands."""
