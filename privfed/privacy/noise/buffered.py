"""Noise that is correlated over all rounds by a few buffers, in place of former rounds' rows."""

from __future__ import annotations

import numpy as np

from privfed.privacy.factorization.buffers import Buffers
from privfed.privacy.noise.correlated import Correlated, Row
from privfed.streams import Keys, Streams


class BufferedNoise(Correlated):
    """Y_t = Z_t - sum_j omega_j B_j, and then B_j <- theta_j B_j + Y_t, which begin at 0.

    B_j is sum_i theta_j^(i-1) Y_{t - i}, so that sum_i c_i Y_{t - i} = Z_t with c_0 = 1 and
    c_i = sum_j omega_j theta_j^(i-1): the rows are C^-1 Z. In double precision; the real numbers
    that these stand for are what is proved.

    Source: Dvijotham, McMahan, Pillutla, Steinke & Thakurta 2024, Algorithm 1, in the form that
    streams what it has put out.
    """

    def __init__(self, buffers: Buffers, length: int, streams: Streams) -> None:
        super().__init__(length, streams)
        self.remembers = len(buffers.decays)
        self._decays = np.array(buffers.decays)[:, None]
        self._outputs = np.array(buffers.outputs)
        self._past = np.zeros((self.remembers, length))

    def _next(self, keys: Keys, deviation: float) -> Row:
        row = keys.normal(self._length) - self._outputs @ self._past
        self._past = self._decays * self._past + row
        return np.asarray(deviation * row)
