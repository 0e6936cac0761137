"""Shares as a Reed-Solomon word: the secret where some of them are wrong (Gao 2003)."""

from __future__ import annotations

from collections.abc import Mapping

from privfed.secure.masked.shamir import PRIME

Polynomial = list[int]
"""Coefficients modulo the prime, the lowest first, and none that is zero at the end."""


def corrected(shares: Mapping[int, int], threshold: int) -> bytes | None:
    """The secret of `shares`, of which up to (len - threshold) // 2 may be wrong.

    None where no polynomial of a degree below `threshold` with a 32-byte secret differs from them
    in so few (where it differs, the factor is zero, and its degree is at most that half). Source:
    Gao 2003, "A new algorithm for decoding Reed-Solomon codes", algorithm 1.
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
    """The product of x - place."""
    product = [1]
    for place in places:
        product = _sum([0, *product], _times([place], product), -1)
    return product


def _interpolated(shares: Mapping[int, int], places: tuple[int, ...]) -> Polynomial:
    """The polynomial through all shares, by Newton's divided differences."""
    through: Polynomial = []
    vanishing = [1]
    for place in places:
        gap = shares[place] - _at(through, place)
        step = gap * pow(_at(vanishing, place), -1, PRIME) % PRIME
        through = _sum(through, _times([step], vanishing))
        vanishing = _sum([0, *vanishing], _times([place], vanishing), -1)
    return through


def _halved(first: Polynomial, second: Polynomial, twice: int) -> tuple[Polynomial, Polynomial]:
    """Euclid's first remainder of a degree below `twice` / 2, and the factor of `second` in it."""
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
    """`first` and `sign` times `second`."""
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
    """Quotient and remainder."""
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
