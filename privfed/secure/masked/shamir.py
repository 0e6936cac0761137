"""Shamir's secret sharing of 32-byte secrets over the prime 2^256 + 297 (Shamir 1979).

Any `threshold` shares give the secret back; fewer say nothing of it, to anybody however strong:
every secret fits them equally well.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Mapping

PRIME = 2**256 + 297
LENGTH = 33
"""Bytes of a share's value."""


def share(
    secret: bytes,
    threshold: int,
    places: tuple[int, ...],
    below: Callable[[int], int] = secrets.randbelow,
) -> dict[int, int]:
    """Shares of a 32-byte `secret` at distinct `places` from 1: place -> value.

    `below(n)` draws a uniform number below n; the operating system's CSPRNG unless a simulation is
    seeded. Raises `ValueError` for a secret of another length, and places or a threshold that
    cannot be.
    """
    if len(secret) != 32:
        raise ValueError(f"a secret of {len(secret)} bytes; expected 32")
    if len(set(places)) != len(places) or not all(0 < place < PRIME for place in places):
        raise ValueError("places of shares are distinct numbers from 1; place 0 is the secret")
    if not 1 <= threshold <= len(places):
        raise ValueError(f"a threshold of {threshold} for {len(places)} shares")
    rising = [int.from_bytes(secret, "big"), *(below(PRIME) for _ in range(threshold - 1))]
    falling = tuple(reversed(rising))
    return {place: _value(falling, place) for place in places}


def _value(coefficients: tuple[int, ...], place: int) -> int:
    """The polynomial with these coefficients, the highest first, at `place` (Horner's rule)."""
    value = 0
    for coefficient in coefficients:
        value = value * place + coefficient
    return value % PRIME


def reconstruct(shares: Mapping[int, int], threshold: int) -> bytes:
    """The secret from at least `threshold` shares (the first places are used).

    Raises `ValueError` for too few, for values outside the field, and where no 32-byte secret fits:
    some share is not of this secret.
    """
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares; expected at least {threshold}")
    if not all(0 < place < PRIME and 0 <= value < PRIME for place, value in shares.items()):
        raise ValueError("a share outside the field")
    places = tuple(sorted(shares)[:threshold])
    weights = _weights(places)
    pairs = zip(places, weights, strict=True)
    secret = sum(shares[place] * weight for place, weight in pairs) % PRIME
    if secret >= 2**256:
        raise ValueError("these shares are not all of one secret")
    return secret.to_bytes(32, "big")


@functools.lru_cache(maxsize=1024)
def _weights(places: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's coefficients at 0: the same for all secrets that the same clients hold."""
    weights = []
    for place in places:
        above = below = 1
        for other in places:
            if other != place:
                above = above * other % PRIME
                below = below * (other - place) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)
