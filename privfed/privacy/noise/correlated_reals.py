"""Noise that is correlated over a band of rounds, in double precision: that of older runs."""

from __future__ import annotations

from collections import deque

import numpy as np

from privfed.privacy.noise.correlated import Correlated, Row
from privfed.streams import Keys, Streams


class CorrelatedReals(Correlated):
    """Y_t with sum_j c_j Y_{t - j} = Z_t, in double precision.

    The real numbers that these stand for are what is proved; runs of older versions go on with it.
    """

    def __init__(self, coefficients: Row, length: int, streams: Streams) -> None:
        super().__init__(length, streams)
        self.remembers = len(coefficients) - 1
        self._c = coefficients
        self._past: deque[Row] = deque(maxlen=max(self.remembers, 1))

    def _next(self, keys: Keys, deviation: float) -> Row:
        row = keys.normal(self._length)
        for c, past in zip(self._c[1:], reversed(self._past), strict=False):
            row -= c * past
        self._past.append(row / self._c[0])
        return np.asarray(deviation * self._past[-1])
