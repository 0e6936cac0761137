"""The keys of a masked sum that are derived from secrets, each for one roster and purpose."""

from __future__ import annotations

import hashlib

from privfed.secure.frames import BadMessage
from privfed.secure.masked.messages.sealed_shares import between
from privfed.secure.primitives import KeyPair, LowOrder, derive


def agreed_secret(pair: KeyPair, public: bytes) -> bytes:
    """The secret that `pair` shares with the holder of `public`.

    Raises `BadMessage` for a public key of low order.
    """
    try:
        return pair.agree(public)
    except LowOrder as error:
        raise BadMessage("low-order key", str(error)) from error


def commit(agreed: bytes, secret: bytes) -> bytes:
    """A hash that tells nothing of a random secret, and by which it is known."""
    return hashlib.sha256(b"privfed commitment" + agreed + secret).digest()


def self_key(agreed: bytes, seed: bytes | bytearray) -> bytes:
    """What a client's own mask is expanded from, under the roster that was agreed."""
    return derive(seed, agreed, b"self")


def channel_key(agreed: bytes, secret: bytes, sender: int, receiver: int) -> bytes:
    """What shares are sealed with: a key for each direction, so that no nonce is used twice."""
    return derive(secret, agreed, between(b"channel", sender, receiver))


def pair_key(agreed: bytes, secret: bytes, client: int, other: int) -> bytes:
    """What the mask of two clients is expanded from: the same for both."""
    return derive(secret, agreed, between(b"pair", min(client, other), max(client, other)))
