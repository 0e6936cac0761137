"""Real rows as whole numbers modulo 2^b, with a proven bound on what is really summed.

A row x of L2 norm at most C is divided by a public `step`, a power of two, and rounded to whole
numbers by chance, up with the probability of the fraction, so that nothing is lost on average.
Rounding may lengthen a row; it is repeated until the norm is within `bound`, a number that follows
from public constants alone and that noise is calibrated to, never to C / step (Kairouz, Liu &
Steinke 2021, Proposition 22: a try succeeds with probability at least 1 - beta).

A row without a proven norm (no privacy, or noise that its client added) has a largest coordinate
instead, `reach`, and no bound.

The mean of n rows is off by the rounding's deviation, at most step / (2 sqrt(n)) per coordinate
(step / sqrt(6 n) on average), beside a bias of retries that is smaller still: a try fails with a
probability below 0.4 at worst and next to none where C is many steps.

Sums of up to `capacity` rows, noise included, stay within a signed half of the modulus, which is
checked when a run is configured: a wrapped sum would be wrong without a trace.

*Rounding.* A number in 2^-16ths is floor(x) + rest. The sum of floor(x) and 16 random bits is the
number rounded down, or up as often as the first 16 bits of its fraction say. Where the bits are the
first that do not carry, 53 more decide by the rest.

The bits are a fast generator's, with a key that is drawn for each row: no proof asks that roundings
be secret, as the bound of a row holds for each of them.

Random rotations, which spread a row evenly over its coordinates: H diag(+-1) / sqrt(d).

H is Walsh and Hadamard's matrix of a power of two, so rows are padded with zeros to one. The signs
are public and fresh each round. A rotation changes no norm, and is undone exactly but for rounding
in float64 (Kairouz, Liu & Steinke 2021, section 4.2; Suresh et al. 2017).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privfed.core.errors import Refused
from privfed.core.streams import Keys, coins
from privfed.privacy.integers import Integers, Share

Row = NDArray[np.float64] | NDArray[np.float32]
_PARTS = 1 << 16
"""Of a step: as many as a first try of a coin tells apart."""
_ROUNDED_AT_ONCE = 1 << 13
"""Numbers that are taken together: they stay in cache, and libraries start no threads for them."""
_SINGLES = 2 * _ROUNDED_AT_ONCE
"""The same in single precision, which takes half of the room."""
_NONE = np.empty(0, np.int64)
MOST_IN_SINGLE = 1 << 14
"""Steps up to which numbers in single precision, and 16 bits of their fractions, fit 32 bits."""


def fits_single(clip: float, step: float) -> bool:
    """Whether rows of norm `clip` in single precision are divided by `step` exactly, and fit.

    Divided by a power of two, no bit of them is lost.
    """
    return math.frexp(step)[0] == 0.5 and clip / step <= MOST_IN_SINGLE


def rounded_double(row: Row, step: float, keys: Keys) -> tuple[Integers, float]:
    """The steps of `row` `[d]` in whole numbers, and their squared norm."""
    fast, whole_steps = Keys(keys.bits(2).tobytes()), np.empty(len(row), np.int64)
    drawn = fast.bits(-(-len(row) // 4)).view(np.uint16)
    tied, rests, squared = [], [], 0.0
    for start in range(0, len(row), _ROUNDED_AT_ONCE):
        place = slice(start, start + _ROUNDED_AT_ONCE)
        scaled, numbers = row[place] * (_PARTS / step), whole_steps[place]
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
    up = np.array(tied, np.int64)[coins(fast.further(len(tied)), np.array(rests))]
    squared += float((2 * whole_steps[up] + 1).sum())
    whole_steps[up] += 1
    return whole_steps, squared


def rounded_single(row: Row, step: float, keys: Keys) -> tuple[Integers, float]:
    """The same of a row in single precision that `fits_single`, several times as fast."""
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
            up = coins(keys.derived(start.to_bytes(8, "little")).bits(len(ties)), rests)
            numbers[ties[up]] += 1
        real[some] = numbers[some]
        squared += squared_norm(real[some])
        whole_steps[place] = numbers[some]
    return whole_steps, squared


def squared_norm(row: Row) -> float:
    """The squared norm of `row` `[d]`, a few numbers at a time."""
    parts = (
        row[start : start + _ROUNDED_AT_ONCE] for start in range(0, len(row), _ROUNDED_AT_ONCE)
    )
    return sum(float(np.dot(part, part)) for part in parts)


def sixteen_bits(keys: Keys, count: int) -> NDArray[np.uint16]:
    """`count` times 16 bits of a fast generator whose key `keys` draw."""
    words = np.random.SFC64(np.random.SeedSequence(keys.bits(2))).random_raw(-(-count // 4))
    return np.asarray(words).view(np.uint16)[:count]


_BETA = math.exp(-0.5)
_TRIES = 200
"""More than 200 failures in a row have a probability below 1e-43."""
_AT_ONCE = 1 << 16
"""Numbers that are converted at once."""
_MOST_STEPS = 2.0**46
"""Numbers of so many steps at most are rounded, whose parts are whole numbers of 64 bits."""


@dataclass(frozen=True)
class Codec:
    """Rows `[length]` of norm at most `clip`, in steps of `step`, modulo 2^`bits`.

    With an infinite `clip` rows have coordinates of at most `reach` in size, and no bound.
    """

    clip: float
    step: float
    length: int
    bits: int
    reach: float = math.inf
    noise: Share | None = None
    """What each client adds to its encoded row."""

    @classmethod
    def finest(
        cls, clip: float, reach: float, length: int, bits: int, capacity: int, resolution: float
    ) -> Codec:
        """The codec with the finest step at which sums of `capacity` rows cannot wrap.

        `reach` holds where `clip` is infinite. `bound` is at most `resolution` steps, for sums on
        the grid of the noise, and at most 2^30, far below what a float32 row can tell.

        Raises `Refused` where a row of that norm would not be one step long.
        """
        most = min(resolution, 2.0**30)
        size = clip if clip < math.inf else reach
        step = 2.0 ** math.floor(math.log2(size / most))
        while step <= size:
            codec = cls(clip, step, length, bits, reach)
            fits = capacity * codec.largest < 2 ** min(bits - 1, 53)  # what float64 holds
            if fits and (clip == math.inf or codec.bound <= most):
                return codec
            step *= 2
        least = math.floor(math.log2(capacity)) + 4
        raise Refused(
            f"secure.bits is {bits}, too few for sums of {capacity} rows of size {size:g}; "
            f"expected at least {least}, better {least + 8}; raise secure.bits, or "
            "lower secure.capacity (by default the largest cohort that can be drawn)"
        )

    @property
    def bound(self) -> float:
        """The L2 norm of an encoded row, in steps: it holds for every row, by construction."""
        if self.clip == math.inf:
            return math.inf
        x, d = self.clip / self.step, self.length
        likely = x * x + d / 4 + math.sqrt(2 * math.log(1 / _BETA)) * (x + math.sqrt(d) / 2)
        return math.sqrt(min((x + math.sqrt(d)) ** 2, likely))

    @property
    def largest(self) -> int:
        """The largest number that a client can send."""
        added = self.noise.most if self.noise else 0
        if self.clip == math.inf:
            return math.floor(self.reach / self.step) + 1 + added
        longest = min(math.floor(self.clip / self.step) + 1, math.floor(self.bound))
        return longest + added

    @property
    def single(self) -> bool:
        """Whether it takes rows in single precision too, which are rounded faster."""
        return fits_single(self.clip, self.step)

    def encode(self, row: Row, keys: Keys) -> Integers:
        """Whole numbers `[d]` of norm at most `bound`, rounded by coins from `keys`.

        Raises `ValueError` for a row that is not finite, not `[d]`, or longer than the clip.
        """
        if row.shape != (self.length,):
            raise ValueError(f"a row of shape {row.shape}; expected ({self.length},)")
        single = self.single and row.dtype == np.float32
        row = row if single else row.astype(np.float64, copy=False)
        norm = math.sqrt(squared_norm(row))
        if not norm <= self.clip * (1 + (1e-3 if single else 1e-12)):
            raise ValueError(f"a row of norm {norm}; expected at most the clip, {self.clip}")
        reach = min(self.reach, self.step * _MOST_STEPS)
        if not norm <= reach and not float(np.abs(row).max(initial=0.0)) <= reach:
            raise ValueError(f"a row of numbers not within {reach:g}")
        round_row = rounded_single if single else rounded_double
        for attempt in range(_TRIES):
            encoded, squared = round_row(row, self.step, keys.derived(bytes([attempt])))
            if self.clip == math.inf or squared <= self.bound**2 * (1 - 1e-12):
                return encoded
        raise ValueError("no rounding of this row stayed within its bound; this has no chance")

    def saturated(self, row: NDArray[np.float64], hostile: int, most: float) -> Integers:
        """Whole numbers `[d]` for any row whatever, as a client sends that keeps to no bound.

        `hostile` such clients share half of the numbers that a sum can hold, so that they do not
        wrap and cancel each other; no number is above `most`, which the protocol takes.
        """
        most = min(most, self.reach / self.step, (2.0 ** (self.bits - 1) - 1) // (2 * hostile))
        return np.clip(np.round(np.nan_to_num(row / self.step)), -most, most).astype(np.int64)

    def wrap(self, numbers: Integers) -> NDArray[np.uint64]:
        """The residues of `numbers` modulo 2^bits."""
        return numbers.astype(np.uint64) & np.uint64(2**self.bits - 1)

    def unwrap(self, summed: NDArray[np.unsignedinteger]) -> Integers:
        """The number closest to zero with that residue: right where the capacity was kept."""
        shift, numbers = 64 - self.bits, np.empty(len(summed), np.int64)
        for start in range(0, len(summed), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            shifted = summed[some].astype(np.uint64) << np.uint64(shift)
            np.right_shift(shifted.view(np.int64), np.int64(shift), out=numbers[some])
        return numbers

    def decode(self, total: Integers) -> NDArray[np.float64]:
        """The sum `total` of encoded rows, in real numbers."""
        return np.multiply(total, self.step, dtype=np.float64)
