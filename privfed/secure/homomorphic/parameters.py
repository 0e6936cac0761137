"""What homomorphic sums can hold: the parameters of both schemes, and the noise of a sum.

BFV and CKKS both work in the ring of degree N = 4096, with ciphertexts modulo a prime q of 54 bits
and public keys modulo 109 bits, the most that leaves 128 bits of security at that degree with
ternary secrets (the homomorphic encryption standard of 2018).

The noise of a sum. SEAL encrypts with the public key modulo q p, p of 55 bits, and divides by p.
The noise of its samplers, below 21 (2 N + 1), is gone by then; what is left is a rounding error
f s + e: f pseudo-random, uniform in [-1/2, 1/2] and fresh for each row, s the key in {-1, 0, 1},
and e a rounding error of f s, within the same interval and symmetric. In a coefficient that is at
most (N + 1) / 2. Uniform numbers are sub-Gaussian with their own variance, those within 1/2 with
1/4, so that n rows exceed z sqrt(n) (sqrt(N / 12) + 1/2) with a probability below 2 exp(-z^2 / 2):
4e-22 for z = 10, used here. How a message is rounded depends on it and is counted at its worst.

- BFV rounds q m / t by at most 1/2, and a sum is exact while n / 2 + z sqrt(n) (sqrt(N / 12) + 1/2)
  stays below q / 2t = 2^21: 3.5 million rows. Up to 1023 it is exact whatever the random choices.
- CKKS rounds a message's coefficients by at most 1/2, which is N / 2 in a slot, as is e. There f s
  has the variance |s|^2 N / 24, and |s|^2 <= z^2 N but with a probability of 4 exp(-z^2 / 2). In
  units of 1 / scale a slot is off by less than n N / 2 + z sqrt(n) (z N / sqrt(24) + N / 2), which
  has to stay below scale / 4. Numbers below 2^(bits - 1) times the scale, 2^(53 - bits), are below
  2^52, a quarter of q, which leaves room for the noise. Rounding in float64 adds less than 1e-3.

All this is for rows encrypted as written. A client that is not honest can spoil a sum, as in any
protocol that hides rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DEGREE = 4096
"""N, the degree of the ring."""
MODULI_BITS = [54, 55]
Q = 2**54 - 172031
P = 2**55 - 311295
"""The primes that SEAL takes: the largest of 54 and of 55 bits that are 1 modulo 2 N."""
Z = 10.0
"""How many deviations of its noise a sum is proved for."""
CIPHERTEXT = 61_750
"""Bytes of a ciphertext, about: two polynomials of 54 bits in 64, compressed."""
PUBLIC_KEY = 123_550
"""Bytes of a public key with its parameters, about."""


@dataclass(frozen=True)
class Parameters:
    """The degree N, the primes of q and of the special modulus, and the plain modulus t."""

    degree: int
    moduli: tuple[int, ...]
    plain: int


def most_rows(per_row: float, deviation: float, room: float) -> int:
    """The largest n with n per_row + sqrt(n) deviation <= room."""
    root = (math.sqrt(deviation**2 + 4 * per_row * room) - deviation) / (2 * per_row)
    return math.floor(root**2)
