"""Mechanisms whose noise is fitted to a run: what they solve for at its start, and keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self, runtime_checkable

from privfed.privacy.noise_on_model import CorrelatedOverRounds


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
