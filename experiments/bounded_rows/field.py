"""Arithmetic modulo the prime p = 2^64 - 2^32 + 1, on NumPy arrays of 64-bit words.

Modulo p, 2^64 is 2^32 - 1 and 2^96 is -1, so a product of 128 bits is reduced by two additions
(Solinas 1999, generalized Mersenne numbers). p - 1 is a multiple of 2^32, so there are roots of
unity of every order that is a power of two up to 2^32. 2^48 is a square root of -1.

All elements that functions take and return are in [0, p), as `uint64` arrays of at least one axis.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

MODULUS = 2**64 - 2**32 + 1
BYTES = 8
"""Bytes of an element."""
GENERATOR = 7
"""A generator of the multiplicative group."""

Elements = NDArray[np.uint64]

_P = np.uint64(MODULUS)
_HALF = np.uint64(32)
_LOW = np.uint64(2**32 - 1)


def elements(numbers: NDArray[np.int64]) -> Elements:
    """Converts signed integers to elements."""
    words = numbers.astype(np.uint64)
    return np.where(numbers < 0, words + _P, words)


def centred(values: Elements) -> list[int]:
    """Converts elements `[k]` to integers between -p / 2 and p / 2."""
    return [int(v) - MODULUS if int(v) > MODULUS // 2 else int(v) for v in values]


def add(left: Elements, right: Elements) -> Elements:
    """Returns the sum."""
    words = left + right
    words += (words < left) * _LOW
    return _below(words)


def subtract(left: Elements, right: Elements) -> Elements:
    """Returns the difference."""
    words = left - right
    words -= (left < right) * _LOW
    return words


def multiply(left: Elements, right: Elements) -> Elements:
    """Returns the product; shapes broadcast."""
    left_low, left_high = left & _LOW, left >> _HALF
    right_low, right_high = right & _LOW, right >> _HALF
    low = left_low * right_low
    cross = left_low * right_high
    other = left_high * right_low
    middle = (low >> _HALF) + (cross & _LOW) + (other & _LOW)
    high = left_high * right_high + (cross >> _HALF) + (other >> _HALF) + (middle >> _HALF)
    return _reduced((low & _LOW) | (middle << _HALF), high)


def total(values: Elements) -> Elements:
    """Returns the sum over the first axis: `[1]` for `[k]`, and `[m]` for `[k, m]`."""
    low = (values & _LOW).sum(axis=0, dtype=np.uint64)
    high = (values >> _HALF).sum(axis=0, dtype=np.uint64)
    shifted = multiply(np.atleast_1d(high), np.array([2**32], np.uint64))
    return add(_below(np.atleast_1d(low)), shifted)


def combine(weights: Elements, values: Elements) -> Elements:
    """Returns the sum of `weights` `[k]` times `values` `[k, m]` (or `[k]`), as `[m]` (or
    `[1]`).
    """
    return total(multiply(weights.reshape(-1, *(1,) * (values.ndim - 1)), values))


def powers(base: int, count: int) -> Elements:
    """Returns 1, `base`, `base`^2, and so on `[count]`."""
    row = np.ones(1, np.uint64)
    while len(row) < count:
        step = np.array([pow(base, len(row), MODULUS)], np.uint64)
        row = np.concatenate([row, multiply(row, step)])
    return row[:count]


def root_of_unity(order: int) -> int:
    """Returns a primitive root of unity of `order`, a power of two up to 2^32."""
    return pow(GENERATOR, (MODULUS - 1) // order, MODULUS)


def uniform(key: bytes, count: int) -> Elements:
    """Returns uniform elements `[count]` determined by `key` `[32]`, by AES-256-CTR and rejection.

    A key must be used only once. One word in 2^32 is not below p and is rejected.
    """
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    accepted = np.zeros(0, np.uint64)
    while len(accepted) < count:
        text = stream.update(bytes((count - len(accepted)) * BYTES))
        words = np.frombuffer(text, "<u8").astype(np.uint64)
        accepted = np.concatenate([accepted, words[words < _P]])
    return accepted


def _below(words: Elements) -> Elements:
    return words - (words >= _P) * _P


def _reduced(low: Elements, high: Elements) -> Elements:
    top = high >> _HALF
    words = low - top
    words -= (low < top) * _LOW
    summand = (high & _LOW) * _LOW
    words += summand
    words += (words < summand) * _LOW
    return _below(words)
