"""A hash tree over the shares that a member holds of a client: one commitment, opened by parts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

DIGEST = 16
"""Bytes of a hash: 128 bits against all but its author, whom two openings would not help."""

Tree = tuple[tuple[bytes, ...], ...]
"""The hashes of all levels: leaves, as many as a power of two, first, and the root last."""


def tree(leaves: Iterable[bytes]) -> Tree:
    """The tree over `leaves` of `DIGEST` bytes, filled up with zeros."""
    level = list(leaves)
    level += [bytes(DIGEST)] * ((1 << (len(level) - 1).bit_length()) - len(level))
    levels = [tuple(level)]
    while len(level) > 1:
        level = [_node(level[at], level[at + 1]) for at in range(0, len(level), 2)]
        levels.append(tuple(level))
    return tuple(levels)


def proof(levels: Tree, numbers: Iterable[int]) -> bytes:
    """The hashes that lead from the leaves with these `numbers` to the root, level by level."""
    places, needed = set(numbers), []
    for level in levels[:-1]:
        needed += [level[at ^ 1] for at in sorted(places) if at ^ 1 not in places]
        places = {at // 2 for at in places}
    return b"".join(needed)


def proved_root(leaves: Mapping[int, bytes], proof: bytes, count: int) -> bytes | None:
    """The root of the tree of `count` leaves that has these `leaves`, by their numbers.

    None for a proof of another length.
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
