"""Noise that hangs together over rounds: Y = C^-1 Z, row by row, for a Toeplitz matrix C.

Z_t follows from the run's own key and the round, so that a resume computes the same rows again, and
a round that was consumed without a release leaves the later ones as they were. Rounds are asked for
in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privfed.streams import Keys, Streams

Row = NDArray[np.float64]


class Correlated(ABC):
    """The noise of a run's rounds `[length]`, each made of what is remembered of those before."""

    remembers: int
    """How many rows `[length]` of 8 bytes a number it remembers."""

    def __init__(self, length: int, streams: Streams) -> None:
        self._length, self._streams = length, streams
        self._round, self._last, self._deviation = 0, np.zeros(length), 0.0

    def at(self, round: int) -> CorrelatedKeys:
        """The keys with which `round` is released."""
        return CorrelatedKeys(None, source=self, round=round)

    def noise(self, round: int, deviation: float) -> Row:
        """Y of `round` `[length]`, from 1, for Z of this `deviation`, the same in all rounds.

        That of the latest round may be asked for again. Raises `ValueError` for a round before
        that, and for another deviation.
        """
        if round < self._round:
            raise ValueError(f"the noise of round {round} is past: it is at round {self._round}")
        if self._round and deviation != self._deviation:
            raise ValueError(
                f"the noise of round {round} is to have the deviation {deviation:g}, and that of "
                f"earlier ones, which it hangs together with, had {self._deviation:g}"
            )
        self._deviation = deviation
        while self._round < round:
            self._round += 1
            keys = self._streams.at("matrix", self._round)
            self._last = self._next(keys, deviation)
        return self._last

    @abstractmethod
    def _next(self, keys: Keys, deviation: float) -> Row:
        """Y of the next round `[length]`, whose Z follows from `keys`."""


@dataclass(frozen=True)
class CorrelatedKeys(Keys):
    """The randomness of one round's release: a row of `source`."""

    source: Correlated | None = None
    round: int = 0

    def noise(self, deviation: float) -> Row:
        """Y of the round `[length]`, for Z of this `deviation`.

        Raises `ValueError` where there is no source.
        """
        if self.source is None:
            raise ValueError("these keys have no correlated noise")
        return self.source.noise(self.round, deviation)
