"""What a client deals the committee: shares of the seeds of its masks, each with a commitment.

A client's secrets are, in order, the fresh seed of its own mask, and those of its pairs with all
others of the roster. By commitments of 16 bytes the server knows each share, and each secret, when
it is opened: a wrong share is left out and its holder is known, and a client whose shares do not
give its secret back is known too.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from privfed.secure.committee.messages import DIGEST
from privfed.secure.frames import NUMBER
from privfed.secure.masked.shamir import LENGTH, PRIME, share


@dataclass(frozen=True, repr=False)
class Dealt:
    """For each of c members a text of shares and commitments to them, and those to the secrets."""

    texts: tuple[bytes, ...]
    columns: tuple[bytes, ...]
    secrets: bytes


def deal(
    agreed: bytes, dealer: int, secrets: tuple[bytes, ...], threshold: int, members: int
) -> Dealt:
    """Shares of `secrets` for places 1 to `members`, of which `threshold` give each back."""
    places = tuple(range(1, members + 1))
    dealt = [share(secret, threshold, places) for secret in secrets]
    texts = tuple(
        b"".join(shares[place].to_bytes(LENGTH, "little") for shares in dealt) for place in places
    )
    columns = tuple(
        share_commitments(agreed, dealer, place, text)
        for place, text in zip(places, texts, strict=True)
    )
    commitments = (
        secret_commitment(agreed, dealer, number, secret) for number, secret in enumerate(secrets)
    )
    return Dealt(texts, columns, b"".join(commitments))


def read_shares(text: bytes, count: int) -> tuple[int, ...] | None:
    """The `count` shares in `text`; None for another length, or a value that no share can have."""
    if len(text) != count * LENGTH:
        return None
    parts = (text[start : start + LENGTH] for start in range(0, len(text), LENGTH))
    shares = tuple(int.from_bytes(part, "little") for part in parts)
    return shares if all(value < PRIME for value in shares) else None


def share_commitment(agreed: bytes, dealer: int, place: int, number: int, part: bytes) -> bytes:
    """The commitment `[DIGEST]` to a share of secret `number`, of the member at `place`."""
    text = agreed + NUMBER.pack(dealer) + NUMBER.pack(place) + NUMBER.pack(number) + part
    return hashlib.sha256(b"privfed share" + text).digest()[:DIGEST]


def share_commitments(agreed: bytes, dealer: int, place: int, text: bytes) -> bytes:
    """The commitments to all shares in `text`, in order."""
    parts = (text[start : start + LENGTH] for start in range(0, len(text), LENGTH))
    return b"".join(
        share_commitment(agreed, dealer, place, number, part) for number, part in enumerate(parts)
    )


def secret_commitment(agreed: bytes, dealer: int, number: int, secret: bytes) -> bytes:
    """The commitment `[DIGEST]` to secret `number` of a client."""
    text = agreed + NUMBER.pack(dealer) + NUMBER.pack(number) + secret
    return hashlib.sha256(b"privfed secret" + text).digest()[:DIGEST]


def commitment_at(commitments: bytes, number: int) -> bytes:
    """The commitment of that number, of all in order."""
    return commitments[number * DIGEST : (number + 1) * DIGEST]


def column_digest(column: bytes) -> bytes:
    """By what a member shows that it holds the shares that a column of commitments is of."""
    return hashlib.sha256(b"privfed column" + column).digest()[:DIGEST]
