"""Keys of a masked sum that are derived from secrets, each for one roster and purpose."""

from __future__ import annotations

import hashlib

from privfed.secure.frames import BadMessage
from privfed.secure.masked.messages.sealed_shares import between
from privfed.secure.primitives import KeyPair, LowOrder, derive


def agreed_secret(pair: KeyPair, public: bytes) -> bytes:
    """Returns the secret that `pair` shares with the holder of `public`.

    Raises:
      BadMessage: for a public key of low order.
    """
    try:
        return pair.agree(public)
    except LowOrder as error:
        raise BadMessage("low-order key", str(error)) from error


def commit(agreed: bytes, secret: bytes) -> bytes:
    """Returns a commitment: a hash that reveals nothing about a random secret and identifies it."""
    return hashlib.sha256(b"privfed commitment" + agreed + secret).digest()


def self_key(agreed: bytes, seed: bytes | bytearray) -> bytes:
    """Returns the key of a client's self-mask under the agreed roster."""
    return derive(seed, agreed, b"self")


def channel_key(agreed: bytes, secret: bytes, sender: int, receiver: int) -> bytes:
    """Returns the key that seals shares; each direction has its own, so no nonce is used twice."""
    return derive(secret, agreed, between(b"channel", sender, receiver))


def pair_key(agreed: bytes, secret: bytes, client: int, other: int) -> bytes:
    """Returns the key of the mask of two clients; it is the same for both."""
    return derive(secret, agreed, between(b"pair", min(client, other), max(client, other)))
