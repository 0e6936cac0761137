"""Noise correlated over rounds: Y = C^-1 Z, row by row, for a Toeplitz matrix C.

Z_t is drawn with the run's own key and the round's number, so a resumed run computes the same rows
again. A round that was consumed without a release leaves later rounds unchanged. Rounds are
requested in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privfed.core.errors import Refused
from privfed.core.streams import Keys, Streams
from privfed.privacy.noise.factorization import UNIT, Buffers
from privfed.privacy.noise.gaussian_on_grid import FINENESS, grid_of, rounded_normal

Row = NDArray[np.float64]


class Correlated(ABC):
    """Noise rows Y_t `[length]` of a run, correlated over its rounds by C Y = Z.

    Rows are computed in the order of rounds, from stored earlier rows.
    """

    remembers: int
    """Number of stored rows `[length]`, with 8 bytes per number."""

    def __init__(self, length: int, streams: Streams) -> None:
        self._length, self._streams = length, streams
        self._round, self._last, self._noise_std = 0, np.zeros(length), 0.0

    def at(self, round: int) -> CorrelatedKeys:
        """Returns the keys that draw the noise of `round`'s release."""
        return CorrelatedKeys(None, source=self, round=round)

    def noise(self, round: int, std: float) -> Row:
        """Returns Y `[length]` of `round`, from 1, where Z has the standard deviation `std`.

        The latest round may be requested again and gives the same row; rounds may be skipped.
        Raises `ValueError` for an earlier round, and if `std` differs from that of earlier calls.
        """
        if round < self._round:
            raise ValueError(
                f"the noise of round {round} is no longer available: the noise is at round "
                f"{self._round}"
            )
        if self._round and std != self._noise_std:
            raise ValueError(
                f"the noise of round {round} has the standard deviation {std:g}, but the "
                f"noise of earlier rounds, with which it is correlated, had {self._noise_std:g}"
            )
        self._noise_std = std
        while self._round < round:
            self._round += 1
            keys = self._streams.at("matrix", self._round)
            self._last = self._next(keys, std)
        return self._last

    @abstractmethod
    def _next(self, keys: Keys, std: float) -> Row:
        """Returns the noise Y `[length]` of the next round.

        Its Z, of standard deviation `std`, is drawn from `keys`.
        """


@dataclass(frozen=True)
class CorrelatedKeys(Keys):
    """Keys that stand for the correlated noise of `round`, which `source` computes."""

    source: Correlated | None = None
    round: int = 0

    def noise(self, std: float) -> Row:
        """Returns the round's correlated noise Y `[length]`, from Z of standard deviation `std`.

        Raises `ValueError` if these keys have no `source` of correlated noise.
        """
        if self.source is None:
            raise ValueError(
                "these keys have no source of correlated noise; pass the keys that Correlated.at "
                "returns"
            )
        return self.source.noise(self.round, std)


class CorrelatedReals(Correlated):
    """Correlated noise Y_t with sum_j c_j Y_{t - j} = Z_t, in double precision.

    The proof is for real numbers, which double precision approximates. Only runs of older versions
    continue with this noise.
    """

    def __init__(self, coefficients: Row, length: int, streams: Streams) -> None:
        super().__init__(length, streams)
        self.remembers = len(coefficients) - 1
        self._c = coefficients
        self._past: deque[Row] = deque(maxlen=max(self.remembers, 1))

    def _next(self, keys: Keys, std: float) -> Row:
        row = keys.normal(self._length)
        for c, past in zip(self._c[1:], reversed(self._past), strict=False):
            row -= c * past
        self._past.append(row / self._c[0])
        return np.asarray(std * self._past[-1])


class BufferedNoise(Correlated):
    """Correlated noise Y_t = Z_t - sum_j omega_j B_j; then B_j <- theta_j B_j + Y_t, from 0.

    B_j is sum_i theta_j^(i-1) Y_{t - i}, so that sum_i c_i Y_{t - i} = Z_t with c_0 = 1 and c_i =
    sum_j omega_j theta_j^(i-1): the rows are C^-1 Z. The proof is for real numbers, which double
    precision approximates.

    Source: Dvijotham, McMahan, Pillutla, Steinke & Thakurta 2024, Algorithm 1, in the form that
    streams its own outputs.
    """

    def __init__(self, buffers: Buffers, length: int, streams: Streams) -> None:
        super().__init__(length, streams)
        self.remembers = len(buffers.decays)
        self._decays = np.array(buffers.decays)[:, None]
        self._outputs = np.array(buffers.outputs)
        self._past = np.zeros((self.remembers, length))

    def _next(self, keys: Keys, std: float) -> Row:
        row = keys.normal(self._length) - self._outputs @ self._past
        self._past = self._decays * self._past + row
        return np.asarray(std * row)


_BITS = 20
"""Number of bits: coefficients are multiples of `UNIT`, which is 2^-20."""
_MOST = 2.0**62.5
"""Limit on sums of products, which then fit 64-bit integers."""
_TAIL_STDS = 12.0
"""Number of standard deviations: the noise of a run exceeds it with probability at most 1e-32."""


_OVERFLOW = (
    "privacy.toeplitz is set, but noise with these coefficients has no exact sums in 64 bits, "
    "because the noise added from earlier rounds grows too large; remove privacy.toeplitz, or use "
    "decreasing coefficients"
)


class CorrelatedOnGrid(Correlated):
    """Correlated noise g N_t on a grid g, exactly: N_t = round(Z_t / g - sum_j c_j N_{t - j}).

    The sum is over j > 0.

    c_0 = 1, and the other coefficients are integer multiples of 2^-20, so that the sums are exact
    in 64 bits, and Z_t is the continuous Gaussian whose shifted value is rounded
    (`privfed.privacy.noise.gaussian_on_grid`).

    *Guarantee*: let x_t be a multiple of g, as sums of rows on the grid are, r = x + g N the
    release, and w = C x + Z. As rounding commutes with adding integers,

        r_t = g round((x_t + Z_t) / g - sum_j c_j N_{t - j})
            = g round((w_t - sum_j c_j r_{t - j}) / g),

    since w_t = x_t + sum_j c_j x_{t - j} + Z_t: a function of w_t and of earlier releases. All
    releases are therefore post-processing of C x + Z, adaptively, whatever the rounding. (The sum
    over real coefficients has to be this one exactly: a rounded buffer is no function of w, so
    buffers have no such proof.)

    *Difference from C^-1 Z*: N_t is C^-1 (Z + e), where |e_t| <= 1/2 is the rounding, at most 2^-30
    of a standard deviation of Z.
    """

    def __init__(self, coefficients: Row, length: int, streams: Streams) -> None:
        super().__init__(length, streams)
        self.remembers = len(coefficients) - 1
        multiples = coefficients / UNIT
        if coefficients[0] != 1.0 or np.any(multiples != np.rint(multiples)):
            raise ValueError("noise on a grid needs c_0 = 1, and the others in multiples of 2^-20")
        self._multiples = multiples.astype(np.int64)
        self._past: deque[NDArray[np.int64]] = deque(maxlen=max(self.remembers, 1))

    def _next(self, keys: Keys, std: float) -> Row:
        grid = grid_of(std)
        if grid is None:
            return np.zeros(self._length)
        shift = self._shift()
        below, rest = shift >> _BITS, shift & ((1 << _BITS) - 1)
        words, parts = keys.bits(self._length), np.asarray(rest * UNIT, dtype=np.float64)
        scale = np.nextafter(std / grid, np.inf)
        rounded = rounded_normal(words, float(scale), keys.further, parts)
        steps = rounded.astype(np.int64) - below
        self._past.append(steps)
        return np.asarray(grid * steps)

    def _shift(self) -> NDArray[np.int64]:
        """Returns sum_j c_j N_{t - j} over j > 0 `[length]`, in multiples of 2^-20."""
        total = np.zeros(self._length, dtype=np.int64)
        reach = 0.0
        for multiple, past in zip(self._multiples[1:], reversed(self._past), strict=False):
            reach += float(abs(multiple)) * float(np.abs(past).max(initial=0))
            total += multiple * past
        if reach > _MOST:
            raise Refused(_OVERFLOW)
        return total


def refuse_overflow(coefficients: Row, rounds: int) -> None:
    """Raises `Refused` if sums of `CorrelatedOnGrid` over `rounds` may not fit 64-bit integers."""
    from scipy.signal import lfilter  # imported here, since lists of parts do not need it

    first = np.zeros(rounds)
    first[0] = 1.0
    # Where C is not stable, its inverse grows without bound.
    with np.errstate(over="ignore", invalid="ignore"):
        inverse = float(np.linalg.norm(lfilter([1.0], coefficients, first)))
    steps = _TAIL_STDS * inverse * 2 * FINENESS
    reach = steps * float(np.abs(coefficients[1:]).sum()) * 2.0**_BITS
    if not reach <= _MOST:
        raise Refused(f"{_OVERFLOW} (over {rounds} rounds)")
