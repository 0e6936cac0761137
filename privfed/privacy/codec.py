"""Encodes real rows as integers modulo 2^b, with a proven norm bound on the encoded rows.

A row x of L2 norm at most C is divided by a public `step`, a power of two. Each number is then
rounded to an integer at random: up with a probability equal to its fractional part, so rounding is
unbiased. Rounding may lengthen a row, so it is repeated until the norm is within `bound`. The bound
follows from public constants alone, and noise is calibrated to it, never to C / step (Kairouz, Liu
& Steinke 2021, Proposition 22: a try succeeds with probability at least 1 - beta).

A row without a proven norm (no privacy, or noise that its client added) has no bound, but its
coordinates are at most `reach` in magnitude.

The mean of n rows has a rounding error of standard deviation at most step / (2 sqrt(n)) per
coordinate (step / sqrt(6 n) on average). Retries add a smaller bias: a try fails with a probability
below 0.4 at worst, which is negligible if C is many steps.

Sums of up to `capacity` rows, noise included, are below half of the modulus in magnitude. That
limit is checked when a run is configured, since a wrapped sum would be wrong without detection.

*Rounding.* A number x, in units of 2^-16 steps, is floor(x) + rest. The sum of floor(x) and 16
random bits is the number rounded down, or up with the probability of the first 16 bits of its
fraction. If the bits are the largest without a carry, 53 more bits are compared with the rest.

The bits come from a fast generator, keyed freshly for each row: no proof requires the rounding to
be secret, as the bound of a row holds for every rounding.

Rows may have been rotated before (`privfed.privacy.rotation`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privfed.core.errors import Refused
from privfed.core.streams import Keys, bernoulli
from privfed.privacy.integers import Integers, Share

Row = NDArray[np.float64] | NDArray[np.float32]
_PARTS = 1 << 16
"""Fractions of a step that the first comparison of a random rounding distinguishes."""
_ROUNDING_BLOCK = 1 << 13
"""Number of values per block: a block fits the cache, and libraries start no threads for it."""
_SINGLES = 2 * _ROUNDING_BLOCK
"""Block size in single precision, which takes half of the memory."""
_NONE = np.empty(0, np.int64)
MOST_IN_SINGLE = 1 << 14
"""Number of steps up to which numbers in single precision, and 16
bits of their fractions, fit 32 bits."""


def fits_single(clip: float, step: float) -> bool:
    """Whether rows of norm `clip` can be encoded in single precision.

    True if `step` is a power of two, so that division by it is exact, and `clip` is at most 2^14
    steps, so that quotients with 16 bits of fraction fit 32 bits.
    """
    return math.frexp(step)[0] == 0.5 and clip / step <= MOST_IN_SINGLE


def rounded_double(row: Row, step: float, keys: Keys) -> tuple[Integers, float]:
    """Rounds `row` `[d]` at random, without bias, to integer multiples of `step`.

    Returns the integers `[d]`, in steps, and the squared norm of these.
    """
    fast, whole_steps = Keys(keys.bits(2).tobytes()), np.empty(len(row), np.int64)
    drawn = fast.bits(-(-len(row) // 4)).view(np.uint16)
    tied, rests, squared = [], [], 0.0
    for start in range(0, len(row), _ROUNDING_BLOCK):
        place = slice(start, start + _ROUNDING_BLOCK)
        scaled = np.multiply(row[place], _PARTS / step, dtype=np.float64)
        numbers = whole_steps[place]
        numbers[:] = floored = np.floor(scaled)
        numbers += drawn[place][: len(scaled)].astype(np.int64)
        last = numbers.astype(np.uint16)
        if last.max() == _PARTS - 1:
            ties = np.flatnonzero(last == _PARTS - 1)
            tied += (ties + start).tolist()
            rests += (scaled[ties] - floored[ties]).tolist()
        numbers >>= 16
        real = numbers.astype(np.float64)
        squared += float(np.dot(real, real))
    up = np.array(tied, np.int64)[bernoulli(fast.further(len(tied)), np.array(rests))]
    squared += float((2 * whole_steps[up] + 1).sum())
    whole_steps[up] += 1
    return whole_steps, squared


def rounded_single(row: Row, step: float, keys: Keys) -> tuple[Integers, float]:
    """Rounds like `rounded_double`, faster and with other random bits; requires `fits_single`."""
    drawn, whole_steps = sixteen_bits(keys, len(row)), np.empty(len(row), np.int64)
    scaled, floored = np.empty((2, _SINGLES), np.float32)
    numbers, real = np.empty(_SINGLES, np.int32), np.empty(_SINGLES)
    scale, squared = np.float32(_PARTS / step), 0.0
    for start in range(0, len(row), _SINGLES):
        place = slice(start, start + _SINGLES)
        count = len(row[place])
        some = slice(count)
        np.multiply(row[place], scale, out=scaled[some])
        np.floor(scaled[some], out=floored[some])
        numbers[some] = floored[some]
        np.add(numbers[some], drawn[place], out=numbers[some], casting="unsafe")
        last = numbers[some].view(np.uint16)[::2]
        ties = np.flatnonzero(last == _PARTS - 1) if last.max() == _PARTS - 1 else _NONE
        np.right_shift(numbers[some], 16, out=numbers[some])
        if len(ties):
            rests = scaled[ties].astype(np.float64) - floored[ties]
            up = bernoulli(keys.derived(start.to_bytes(8, "little")).bits(len(ties)), rests)
            numbers[ties[up]] += 1
        real[some] = numbers[some]
        squared += squared_norm(real[some])
        whole_steps[place] = numbers[some]
    return whole_steps, squared


def squared_norm(row: Row) -> float:
    """Returns the squared norm of `row` `[d]`, computed in blocks."""
    parts = (row[start : start + _ROUNDING_BLOCK] for start in range(0, len(row), _ROUNDING_BLOCK))
    doubles = (part.astype(np.float64, copy=False) for part in parts)
    return sum(float(np.dot(part, part)) for part in doubles)


def sixteen_bits(keys: Keys, count: int) -> NDArray[np.uint16]:
    """Returns `count` random 16-bit numbers of a fast generator whose key is drawn from `keys`."""
    words = np.random.SFC64(np.random.SeedSequence(keys.bits(2))).random_raw(-(-count // 4))
    return np.asarray(words).view(np.uint16)[:count]


_BETA = math.exp(-0.5)
_TRIES = 200
"""Number of tries; the probability that all fail is below 1e-43."""
_BATCH_SIZE = 1 << 16
"""Number of values that are converted at once."""
_MOST_STEPS = 2.0**46
"""Largest number of steps that is rounded, so that its parts fit 64-bit integers."""


@dataclass(frozen=True)
class Codec:
    """Encodes rows `[length]` of norm at most `clip` in steps of `step`, modulo 2^`bits`.

    With an infinite `clip`, each coordinate is at most `reach` in magnitude (before division by
    `step`), and rows have no norm bound.
    """

    clip: float
    step: float
    length: int
    bits: int
    reach: float = math.inf
    noise: Share | None = None
    """Noise that each client adds to its encoded row."""

    @classmethod
    def finest(
        cls, clip: float, reach: float, length: int, bits: int, capacity: int, resolution: float
    ) -> Codec:
        """Returns the codec with the finest step for which sums cannot wrap.

        Args:
          clip: clipping norm; infinite for rows without a proven norm.
          reach: largest magnitude of a coordinate, used if `clip` is infinite.
          length: length of a row.
          bits: bits of the modulus.
          capacity: largest number of rows in a sum.
          resolution: largest norm bound of an encoded row, in steps, at which sums are on the grid
            of central noise; infinite without this limit. At most 2^30 is used, whose steps are far
            below the precision of a float32 row.

        Raises:
          Refused: if even with the largest step (`clip`, or `reach` if `clip` is infinite) sums
            could wrap, or the norm bound of rows with a finite `clip` would exceed `resolution`.
        """
        most = min(resolution, 2.0**30)
        size = clip if clip < math.inf else reach
        step = 2.0 ** math.floor(math.log2(size / most))
        while step <= size:
            codec = cls(clip, step, length, bits, reach)
            fits = capacity * codec.largest < 2 ** min(bits - 1, 53)  # exact in float64
            if fits and (clip == math.inf or codec.bound <= most):
                return codec
            step *= 2
        least = math.floor(math.log2(capacity)) + 4
        raise Refused(
            f"secure.bits is {bits}, but sums of {capacity} rows with numbers up to {size:g} need "
            f"more bits: at least {least}, better {least + 8}; raise secure.bits, or lower "
            "secure.capacity (by default the largest cohort that can be sampled)"
        )

    @property
    def bound(self) -> float:
        """L2 norm bound of an encoded row, in steps, which holds for every row by construction."""
        if self.clip == math.inf:
            return math.inf
        x, d = self.clip / self.step, self.length
        likely = x * x + d / 4 + math.sqrt(2 * math.log(1 / _BETA)) * (x + math.sqrt(d) / 2)
        return math.sqrt(min((x + math.sqrt(d)) ** 2, likely))

    @property
    def largest(self) -> int:
        """Largest magnitude of an honest client's integer, in steps, with its `noise` (if any)."""
        added = self.noise.most if self.noise else 0
        if self.clip == math.inf:
            return math.floor(self.reach / self.step) + 1 + added
        longest = min(math.floor(self.clip / self.step) + 1, math.floor(self.bound))
        return longest + added

    @property
    def single(self) -> bool:
        """Whether `encode` rounds float32 rows in single precision, which is faster."""
        return fits_single(self.clip, self.step)

    def encode(self, row: Row, keys: Keys) -> Integers:
        """Returns integers `[d]` of norm at most `bound`, rounded with randomness from `keys`.

        Raises `ValueError` if the row is not finite, not of shape `[d]`, or longer than `clip`, or
        if `clip` is infinite and a coordinate exceeds `reach`. Also if none of 200 random roundings
        is within the bound, which has negligible probability.
        """
        if row.shape != (self.length,):
            raise ValueError(f"the row has shape {row.shape}; expected ({self.length},)")
        single = self.single and row.dtype == np.float32
        norm = math.sqrt(squared_norm(row))
        if not norm <= self.clip * (1 + (1e-3 if single else 1e-12)):
            raise ValueError(f"the row has norm {norm}; expected at most the clip, {self.clip}")
        reach = min(self.reach, self.step * _MOST_STEPS)
        if not norm <= reach and not float(np.abs(row).max(initial=0.0)) <= reach:
            raise ValueError(f"the row has numbers that are not within {reach:g}")
        round_row = rounded_single if single else rounded_double
        for attempt in range(_TRIES):
            encoded, squared = round_row(row, self.step, keys.derived(bytes([attempt])))
            if self.clip == math.inf or squared <= self.bound**2 * (1 - 1e-12):
                return encoded
        raise ValueError(
            "no rounding of this row was within the bound, which has negligible probability; "
            "repeat the round"
        )

    def saturated(self, row: NDArray[np.float64], byzantine: int, most: float) -> Integers:
        """Returns integers `[d]` for any row, as sent by a Byzantine client that ignores the bound.

        The row is divided by `step`, rounded and limited in each coordinate: to `most`, to
        `reach`, and to half of the sum's range divided by `byzantine`, so that rows of such clients
        do not wrap and cancel each other. NaN becomes 0.

        Args:
          row: the real row, shape [d]; any values.
          byzantine: number of such clients.
          most: largest magnitude that the protocol accepts, in steps.
        """
        most = min(most, self.reach / self.step, (2.0 ** (self.bits - 1) - 1) // (2 * byzantine))
        return np.clip(np.round(np.nan_to_num(row / self.step)), -most, most).astype(np.int64)

    def wrap(self, numbers: Integers) -> NDArray[np.uint64]:
        """Returns the residues of `numbers` modulo 2^bits."""
        return numbers.astype(np.uint64) & np.uint64(2**self.bits - 1)

    def unwrap(self, summed: NDArray[np.unsignedinteger]) -> Integers:
        """Returns the integers nearest zero with residues `summed` modulo 2^bits.

        They are the true sum if at most `capacity` rows were added (see `finest`).
        """
        shift, numbers = 64 - self.bits, np.empty(len(summed), np.int64)
        for start in range(0, len(summed), _BATCH_SIZE):
            some = slice(start, start + _BATCH_SIZE)
            shifted = summed[some].astype(np.uint64) << np.uint64(shift)
            np.right_shift(shifted.view(np.int64), np.int64(shift), out=numbers[some])
        return numbers

    def decode(self, total: Integers) -> NDArray[np.float64]:
        """Returns the sum `total` of encoded rows times `step`, as real numbers."""
        return np.multiply(total, self.step, dtype=np.float64)
