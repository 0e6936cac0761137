"""Exact sampling of discrete Gaussians from random bits and integers only.

Canonne, Kamath & Steinke 2020, algorithms 1 to 3, vectorised over all draws: Bernoulli(exp(-x)) for
rational x, from it a discrete Laplace, and from that, by rejection, the discrete Gaussian. The
sampler is slower than a table (`privfed.privacy.noise.table_sampler`), but its exactness needs no
further proof.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from privfed.core.streams import Keys
from privfed.privacy.integers import Integers

LARGEST_STD = 400
"""Largest standard deviation for which the squares that are compared fit 63 bits."""
_MOST = 2**63 - 1


class _Bits:
    """Uniform integers from 64-bit words of `keys`; each method call uses new, independent words.

    This also holds for seeded keys, whose draws would otherwise repeat.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys, self._calls = keys, 0

    def below(self, bound: Integers) -> Integers:
        """Returns a uniform integer in [0, b) for each b in `bound`, by rejection."""
        numbers = np.zeros(len(bound), dtype=np.int64)
        left = np.arange(len(bound))
        while len(left):
            wide = bound[left].astype(np.uint64)
            draw = self._words(len(left)) >> np.uint64(1)
            fair = draw < (np.uint64(2**63) // wide) * wide
            numbers[left[fair]] = (draw[fair] % wide[fair]).astype(np.int64)
            left = left[~fair]
        return numbers

    def fair(self, count: int) -> NDArray[np.bool_]:
        """Returns Bernoulli(1/2) draws `[count]`."""
        return (self._words(count) & np.uint64(1)).astype(bool)

    def _words(self, count: int) -> NDArray[np.uint64]:
        self._calls += 1
        return self._keys.derived(self._calls.to_bytes(8, "little")).bits(count)


def discrete_gaussian(keys: Keys, variance: int, count: int) -> Integers:
    """Returns `count` draws of P[X = k] ~ exp(-k^2 / (2 variance)), exactly.

    Raises `ValueError` unless the variance is an integer from 1 to 160,000.
    """
    if variance != int(variance) or not 1 <= variance <= LARGEST_STD**2:
        raise ValueError(f"the variance is {variance!r}; expected an integer from 1 to 160000")
    bits, scale = _Bits(keys), math.isqrt(variance) + 1
    noise = np.zeros(count, dtype=np.int64)
    left = np.arange(count)
    while len(left):
        drawn = _discrete_laplace(bits, scale, len(left))
        # exp(-(|y| - variance / scale)^2 / (2 variance)); capped so that squares do not overflow
        gap = np.minimum(np.abs(np.abs(drawn) * scale - variance), math.isqrt(_MOST // 64))
        below = np.full(len(left), 2 * variance * scale * scale)
        accepted = _exponential(bits, gap * gap, below)
        noise[left[accepted]] = drawn[accepted]
        left = left[~accepted]
    return noise


def _discrete_laplace(bits: _Bits, scale: int, count: int) -> Integers:
    """Returns `count` draws of P[Y = y] ~ exp(-|y| / scale)."""
    draws = np.zeros(count, dtype=np.int64)
    left = np.arange(count)
    while len(left):
        low = bits.below(np.full(len(left), scale))
        starts = _exponential(bits, low, np.full(len(left), scale))
        high = np.zeros(len(left), dtype=np.int64)
        going = np.flatnonzero(starts)
        while len(going):
            going = going[_exponential(bits, *_unit(len(going)))]
            high[going] += 1
        size = low + scale * high
        negative = bits.fair(len(left))
        accepted = starts & ~(negative & (size == 0))  # zero counts once, with one sign
        draws[left[accepted]] = np.where(negative, -size, size)[accepted]
        left = left[~accepted]
    return draws


def _exponential(bits: _Bits, over: Integers, under: Integers) -> NDArray[np.bool_]:
    """Returns a Bernoulli(exp(-over / under)) draw for each pair, over >= 0 and under > 0."""
    left, rest = over // under, over % under
    heads = _small_exponential(bits, rest, under)
    going = np.flatnonzero(heads & (left > 0))
    while len(going):  # exp(-1) for each integer part; most end at once
        again = _small_exponential(bits, *_unit(len(going)))
        heads[going[~again]] = False
        left[going] -= 1
        going = going[again & (left[going] > 0)]
    return heads


def _unit(count: int) -> tuple[Integers, Integers]:
    """Returns the numerators and the denominators of `count` fractions 1 / 1."""
    ones = np.ones(count, dtype=np.int64)
    return ones, ones


def _small_exponential(bits: _Bits, over: Integers, under: Integers) -> NDArray[np.bool_]:
    """Returns Bernoulli(exp(-x)) draws for x = over / under in [0, 1].

    With independent Bernoulli(x / k) draws for k = 1, 2, ..., the first k that fails is odd with
    probability exp(-x).
    """
    drawn = np.zeros(len(over), dtype=bool)
    going, k = np.arange(len(over)), 1
    while len(going):
        # Bernoulli(x / k) as Bernoulli(x) and Bernoulli(1 / k): denominators stay small
        heads = bits.below(under[going]) < over[going]
        heads &= bits.below(np.full(len(going), k)) == 0
        drawn[going[~heads]] = k % 2 == 1
        going, k = going[heads], k + 1
    return drawn
