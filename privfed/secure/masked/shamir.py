"""Shamir's secret sharing of 32-byte secrets over the prime 2^256 + 297 (Shamir 1979).

Any `threshold` shares reconstruct the secret; fewer reveal nothing about it, even to an unbounded
adversary: every secret is equally consistent with them. Shares of which some may be wrong are
decoded as a Reed-Solomon word (Gao 2003).
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
    """Returns shares of a 32-byte `secret`: the polynomial's value at each of `places`.

    Args:
      secret: 32 bytes.
      threshold: shares that reconstruct the secret.
      places: evaluation points, distinct positive integers.
      below: draws a uniform integer below its argument; by default from the system's CSPRNG.

    Raises:
      ValueError: if the secret has another length, a place repeats or is not from 1 to `PRIME` - 1,
        or `threshold` is not from 1 to the number of places.
    """
    if len(secret) != 32:
        raise ValueError(f"the secret has {len(secret)} bytes; expected 32")
    if len(set(places)) != len(places) or not all(0 < place < PRIME for place in places):
        raise ValueError("places of shares are distinct numbers from 1; place 0 is the secret")
    if not 1 <= threshold <= len(places):
        raise ValueError(
            f"the threshold is {threshold}, but there are {len(places)} shares; expected a "
            "threshold from 1 to that number"
        )
    rising = [int.from_bytes(secret, "big"), *(below(PRIME) for _ in range(threshold - 1))]
    falling = tuple(reversed(rising))
    return {place: _value(falling, place) for place in places}


def _value(coefficients: tuple[int, ...], place: int) -> int:
    """Evaluates the polynomial, highest coefficient first, at `place` (Horner's rule)."""
    value = 0
    for coefficient in coefficients:
        value = value * place + coefficient
    return value % PRIME


def reconstruct(shares: Mapping[int, int], threshold: int) -> bytes:
    """Reconstructs the secret `[32]` from `threshold` shares, those at the smallest places.

    Args:
      shares: values by place.
      threshold: number of shares that reconstruct the secret.

    Raises:
      ValueError: if there are fewer shares, a place or value is outside the field, or the result
        exceeds 32 bytes, since some share is wrong.
    """
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares; expected at least {threshold}")
    if not all(0 < place < PRIME and 0 <= value < PRIME for place, value in shares.items()):
        raise ValueError("a share is outside the field")
    places = tuple(sorted(shares)[:threshold])
    weights = _weights(places)
    pairs = zip(places, weights, strict=True)
    secret = sum(shares[place] * weight for place, weight in pairs) % PRIME
    if secret >= 2**256:
        raise ValueError("these shares do not all belong to one secret")
    return secret.to_bytes(32, "big")


@functools.lru_cache(maxsize=1024)
def _weights(places: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the Lagrange coefficients at 0 for values at `places`."""
    weights = []
    for place in places:
        above = below = 1
        for other in places:
            if other != place:
                above = above * other % PRIME
                below = below * (other - place) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)


Polynomial = list[int]
"""Coefficients modulo the prime, the lowest first, without trailing zeros."""


def corrected(shares: Mapping[int, int], threshold: int) -> bytes | None:
    """Reconstructs a secret if at most half of its `shares` in excess of `threshold` are wrong.

    Source: Gao 2003, "A new algorithm for decoding Reed-Solomon codes", algorithm 1. The error
    locator (`factor` below) is zero at the places of wrong shares, and its degree is at most half
    the number of shares in excess of `threshold`.

    Returns:
      The secret; None if there are fewer than `threshold` shares, or if every polynomial of degree
      below `threshold` with a 32-byte secret differs from more than half of the shares in excess of
      `threshold`.
    """
    places = tuple(sorted(shares))
    if len(places) < threshold:
        return None
    product, through = _vanishing(places), _interpolated(shares, places)
    remainder, factor = _halved(product, through, len(places) + threshold)
    quotient, rest = _divided(remainder, factor)
    secret = quotient[0] if quotient else 0
    if rest or len(quotient) > threshold or secret >= 2**256:
        return None
    return secret.to_bytes(32, "big")


def _vanishing(places: tuple[int, ...]) -> Polynomial:
    """Returns the polynomial in x that is the product of x - place over all `places`."""
    product = [1]
    for place in places:
        product = _sum([0, *product], _times([place], product), -1)
    return product


def _interpolated(shares: Mapping[int, int], places: tuple[int, ...]) -> Polynomial:
    """Returns the polynomial through all `shares`, by Newton's divided differences."""
    through: Polynomial = []
    vanishing = [1]
    for place in places:
        gap = shares[place] - _at(through, place)
        step = gap * pow(_at(vanishing, place), -1, PRIME) % PRIME
        through = _sum(through, _times([step], vanishing))
        vanishing = _sum([0, *vanishing], _times([place], vanishing), -1)
    return through


def _halved(first: Polynomial, second: Polynomial, twice: int) -> tuple[Polynomial, Polynomial]:
    """Returns the first remainder of degree below `twice` / 2 in Euclid's algorithm.

    Also returns the factor f for which the remainder is f `second` plus a multiple of `first`.
    """
    before: Polynomial = []
    factor = [1]
    while second and 2 * (len(second) - 1) >= twice:
        quotient, rest = _divided(first, second)
        first, second = second, rest
        before, factor = factor, _sum(before, _times(quotient, factor), -1)
    return second, factor


def _at(polynomial: Polynomial, place: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * place + coefficient) % PRIME
    return value


def _sum(first: Polynomial, second: Polynomial, sign: int = 1) -> Polynomial:
    length = max(len(first), len(second))
    padded = (each + [0] * (length - len(each)) for each in (first, second))
    return _trimmed([(a + sign * b) % PRIME for a, b in zip(*padded, strict=True)])


def _times(first: Polynomial, second: Polynomial) -> Polynomial:
    product = [0] * max(len(first) + len(second) - 1, 0)
    for at, a in enumerate(first):
        for further, b in enumerate(second, start=at):
            product[further] += a * b
    return _trimmed([coefficient % PRIME for coefficient in product])


def _divided(above: Polynomial, below: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Returns the quotient and the remainder of `above` divided by `below`."""
    rest, inverse = list(above), pow(below[-1], -1, PRIME)
    quotient = [0] * max(len(above) - len(below) + 1, 0)
    for at in reversed(range(len(quotient))):
        quotient[at] = rest[at + len(below) - 1] * inverse % PRIME
        for further, b in enumerate(below, start=at):
            rest[further] = (rest[further] - quotient[at] * b) % PRIME
    return _trimmed(quotient), _trimmed(rest)


def _trimmed(polynomial: Polynomial) -> Polynomial:
    while polynomial and polynomial[-1] == 0:
        polynomial.pop()
    return polynomial
