"""Random signs, and the sums of a row's numbers under them."""

from __future__ import annotations

import math

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from experiments.bounded_rows.field import Elements, add, elements, multiply

_BLOCK = 1 << 13
"""Number of entries of a row that are processed together."""

Signs = NDArray[np.int8]


def signs(key: bytes, tests: int, length: int) -> Signs:
    """Returns 0 with probability 1/2, 1 and -1 with 1/4 each `[tests, length]`, by AES-256-CTR."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    shape = (2, tests, -(-length // 8))
    octets = np.frombuffer(stream.update(bytes(math.prod(shape))), np.uint8).reshape(shape)
    bits = np.unpackbits(octets, axis=2, count=length).view(np.int8)
    chosen: Signs = bits[0] - bits[1]
    return chosen


def signed_sums(chosen: Signs, row: Elements) -> Elements:
    """Returns the sums `[tests]` of `row` `[length]` (or of a share of it) under `chosen`, modulo
    p.

    They are exact: halves of numbers have 32 bits, and sums of 2^21 of them fewer than 53.
    """
    halves = np.stack([row & np.uint64(2**32 - 1), row >> np.uint64(32)], axis=1)
    sums = np.zeros((len(chosen), 2))
    for start in range(0, len(row), _BLOCK):
        part = slice(start, start + _BLOCK)
        sums += chosen[:, part].astype(np.float64) @ halves[part].astype(np.float64)
    low, high = elements(sums.astype(np.int64)).T
    return add(low, multiply(high, np.array([2**32], np.uint64)))
