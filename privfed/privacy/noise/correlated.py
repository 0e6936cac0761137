"""Noise that is correlated over rounds: Y = C^-1 Z, row by row, with b d memory."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privfed.streams import Keys, Streams

Row = NDArray[np.float64]


class Correlated:
    """Rows Y_t `[length]`, where sum_j c_j Y_{t - j} = Z_t and Z_t is standard normal.

    Z_t follows from the run's own key and the round, so that a resume computes the same rows again,
    and a round that was consumed without a release leaves the later ones as they were. Holds the
    last b - 1 rows; rounds are asked for in order.
    """

    def __init__(self, coefficients: Row, length: int, streams: Streams) -> None:
        self._c, self._length, self._streams = coefficients, length, streams
        self._past: deque[Row] = deque(maxlen=max(len(coefficients) - 1, 1))
        self._round, self._last = 0, np.zeros(length)

    def at(self, round: int) -> CorrelatedKeys:
        """The keys with which `round` is released."""
        return CorrelatedKeys(None, source=self, round=round)

    def row(self, round: int) -> Row:
        """Y of `round` `[length]`, from 1; that of the latest one may be asked for again.

        Raises `ValueError` for a round before that.
        """
        if round < self._round:
            raise ValueError(f"the noise of round {round} is past: it is at round {self._round}")
        while self._round < round:
            self._round += 1
            row = self._streams.at("matrix", self._round).normal(self._length)
            for c, past in zip(self._c[1:], reversed(self._past), strict=False):
                row -= c * past
            self._last = row / self._c[0]
            self._past.append(self._last)
        return self._last


@dataclass(frozen=True)
class CorrelatedKeys(Keys):
    """The randomness of one round's release: a row of `source`."""

    source: Correlated | None = None
    round: int = 0

    def row(self) -> Row:
        """Y of the round `[length]`. Raises `ValueError` where there is no source."""
        if self.source is None:
            raise ValueError("these keys have no correlated noise")
        return self.source.row(self.round)
