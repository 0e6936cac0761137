"""Shares of mask seeds that a client deals to the committee, each with a commitment.

A client's secrets are, in order, the fresh seed of its self-mask, and the seeds of its pairs with
all others of the roster. Each is shared among the c members by a polynomial f of degree T - 1, for
the threshold T (Shamir 1979). Member j receives one key, from which it derives ("draws") a number
p_j for each secret. Members 1 to T - 1 have p_j as their share: these and the secret determine f.
For the other members the server receives f(j) - p_j, which reveals nothing without p_j. (Shares
from keys: Cramer, Damgard & Ishai 2005.)

By hashes of 16 bytes the server verifies each number and each secret when it is opened. A wrong
number is left out, and the member that opened it is identified. A client whose shares do not
reconstruct its secret is also identified.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from privfed.secure.committee.policy import Committee
from privfed.secure.frames import NUMBER
from privfed.secure.masked.shamir import LENGTH, PRIME
from privfed.secure.primitives import KEY

DIGEST = 16
"""Bytes of a hash. A second input with its hash takes 2^128 trials. Collisions are of no use."""

Tree = tuple[tuple[bytes, ...], ...]
"""The hashes of all levels: first the leaves, padded to a power of two, and last the root."""


def tree(leaves: Iterable[bytes]) -> Tree:
    """Returns the hash tree over `leaves` of `DIGEST` bytes, padded to a power of two by zeros."""
    level = list(leaves)
    level += [bytes(DIGEST)] * ((1 << (len(level) - 1).bit_length()) - len(level))
    levels = [tuple(level)]
    while len(level) > 1:
        level = [_node(level[at], level[at + 1]) for at in range(0, len(level), 2)]
        levels.append(tuple(level))
    return tuple(levels)


def proof(levels: Tree, numbers: Iterable[int]) -> bytes:
    """Returns the hashes needed to compute the root from the leaves at `numbers`.

    They are concatenated by level, from the leaves upward, each of `DIGEST` bytes.
    """
    places, needed = set(numbers), []
    for level in levels[:-1]:
        needed += [level[at ^ 1] for at in sorted(places) if at ^ 1 not in places]
        places = {at // 2 for at in places}
    return b"".join(needed)


def root_of_proof(leaves: Mapping[int, bytes], proof: bytes, count: int) -> bytes | None:
    """Returns the root of a tree of `count` leaves, computed from some `leaves` and their `proof`.

    `leaves` maps the indices of at least one leaf to their hashes. Returns None if the proof has
    the wrong length.
    """
    level, at = dict(leaves), 0
    for _ in range((count - 1).bit_length()):
        for place in sorted(level):
            if place ^ 1 not in level:
                level[place ^ 1] = proof[at : at + DIGEST]
                at += DIGEST
        level = {at // 2: _node(level[at], level[at + 1]) for at in level if at % 2 == 0}
    return level[0] if at == len(proof) else None


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"privfed node" + left + right).digest()[:DIGEST]


@dataclass(frozen=True, repr=False)
class Dealt:
    """The part of a client's dealing that the server reads: all but the sealed keys.

    Each field concatenates equally long parts. `roots` has, for each member, the root of the hash
    tree over the numbers derived from its key. `corrections` has, for each secret in order, one
    number for each member from place `threshold` to the last (places count from 1): its share minus
    its derived number. `secrets` has a commitment to each secret.
    """

    roots: bytes
    corrections: bytes
    secrets: bytes

    def fits(self, clients: int, committee: Committee) -> bool:
        """Whether all fields have the sizes for a roster of `clients` and its committee."""
        corrections = clients * (committee.members - committee.threshold + 1)
        sizes = (committee.members * DIGEST, corrections * LENGTH, clients * DIGEST)
        return sizes == (len(self.roots), len(self.corrections), len(self.secrets))


def deal_secrets(
    agreed: bytes, dealer: int, secrets: tuple[bytes, ...], keys: tuple[bytes, ...], threshold: int
) -> Dealt:
    """Returns the dealing of `secrets` to the members that hold `keys`, both in order.

    The shares of any `threshold` members restore a secret. `agreed` is the hash of the roster.
    """
    count, members = len(secrets), len(keys)
    columns = [member_numbers(key, count) for key in keys]
    corrections, commitments = [], []
    for number, secret in enumerate(secrets):
        drawn = [column[number] for column in columns]
        points = (int.from_bytes(secret, "big"), *drawn[: threshold - 1])
        later = zip(_extension(threshold, members), drawn[threshold - 1 :], strict=True)
        for weights, number_drawn in later:
            value = sum(map(int.__mul__, weights, points))
            correction = (value - number_drawn) % PRIME
            corrections.append(correction.to_bytes(LENGTH, "little"))
        commitments.append(secret_commitment(agreed, dealer, number, secret))
    roots = (
        column_tree(agreed, dealer, place, column)[-1][0]
        for place, column in enumerate(columns, start=1)
    )
    return Dealt(b"".join(roots), b"".join(corrections), b"".join(commitments))


def member_numbers(key: bytes, count: int) -> tuple[int, ...]:
    """Returns the `count` numbers below 2^256 that a member derives from `key`, one per secret."""
    digests = (hmac.digest(key, NUMBER.pack(number), "sha256") for number in range(count))
    return tuple(int.from_bytes(digest, "little") for digest in digests)


def member_share(
    drawn: int, corrections: bytes, number: int, place: int, shape: tuple[int, int]
) -> int:
    """Returns the share of secret `number` (from 0) for member `place` (from 1).

    `drawn` is the member's number for this secret. `corrections` are those of the dealer; `shape`
    is the threshold and the number of members.
    """
    threshold, members = shape
    if place < threshold:
        return drawn
    start = (number * (members - threshold + 1) + place - threshold) * LENGTH
    return (drawn + int.from_bytes(corrections[start : start + LENGTH], "little")) % PRIME


@functools.lru_cache(maxsize=64)
def _extension(threshold: int, members: int) -> tuple[tuple[int, ...], ...]:
    """Returns the Lagrange coefficients for each of the points `threshold` to `members`, inclusive.

    They give a polynomial's value at that point from its values at 0 to `threshold` - 1.
    """
    points = range(threshold)
    rows = []
    for place in range(threshold, members + 1):
        row = []
        for point in points:
            above = below = 1
            for other in points:
                if other != point:
                    above = above * (place - other) % PRIME
                    below = below * (point - other) % PRIME
            row.append(above * pow(below, -1, PRIME) % PRIME)
        rows.append(tuple(row))
    return tuple(rows)


def column_tree(agreed: bytes, dealer: int, place: int, column: tuple[int, ...]) -> Tree:
    """Returns the hash tree of `column`, the numbers of member `place` for the dealer's secrets.

    `agreed` is the hash of the roster.
    """
    numbers = (drawn.to_bytes(KEY, "little") for drawn in column)
    return tree(
        number_commitment(agreed, dealer, place, number, part)
        for number, part in enumerate(numbers)
    )


def number_commitment(agreed: bytes, dealer: int, place: int, number: int, part: bytes) -> bytes:
    """Returns the commitment `[DIGEST]` to `part`, the encoded number of one member for one secret.

    `place` is the member's place, and `number` the index of the `dealer`'s secret. `agreed` is the
    hash of the roster.
    """
    text = agreed + NUMBER.pack(dealer) + NUMBER.pack(place) + NUMBER.pack(number) + part
    return hashlib.sha256(b"privfed number" + text).digest()[:DIGEST]


def secret_commitment(agreed: bytes, dealer: int, number: int, secret: bytes) -> bytes:
    """Returns the commitment `[DIGEST]` to `secret`, the dealer's secret with index `number`.

    `agreed` is the hash of the roster.
    """
    text = agreed + NUMBER.pack(dealer) + NUMBER.pack(number) + secret
    return hashlib.sha256(b"privfed secret" + text).digest()[:DIGEST]


def commitment_at(commitments: bytes, number: int) -> bytes:
    """Returns commitment `number`, from 0, of the concatenated `commitments`."""
    return commitments[number * DIGEST : (number + 1) * DIGEST]
