"""Numbers rounded to whole ones by chance, up as often as their fraction says.

A number in 2^-16ths is floor(x) + rest. The sum of floor(x) and 16 random bits is the number
rounded down, or up as often as the first 16 bits of its fraction say. Where the bits are the first
that do not carry, 53 more decide by the rest.

The bits are a fast generator's, with a key that is drawn for each row: no proof asks that roundings
be secret, as the bound of a row holds for each of them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from privfed.privacy.integers import Integers
from privfed.streams import Keys, coins

Row = NDArray[np.float64] | NDArray[np.float32]
_PARTS = 1 << 16
"""Of a step: as many as a first try of a coin tells apart."""
_AT_ONCE = 1 << 13
"""Numbers that are taken together: they stay in cache, and libraries start no threads for them."""
_SINGLES = 2 * _AT_ONCE
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
    for start in range(0, len(row), _AT_ONCE):
        place = slice(start, start + _AT_ONCE)
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
    parts = (row[start : start + _AT_ONCE] for start in range(0, len(row), _AT_ONCE))
    return sum(float(np.dot(part, part)) for part in parts)


def sixteen_bits(keys: Keys, count: int) -> NDArray[np.uint16]:
    """`count` times 16 bits of a fast generator whose key `keys` draw."""
    words = np.random.SFC64(np.random.SeedSequence(keys.bits(2))).random_raw(-(-count // 4))
    return np.asarray(words).view(np.uint16)[:count]
