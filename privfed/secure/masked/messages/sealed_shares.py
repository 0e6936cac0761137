"""The text of a client's sealed shares, the hashes of shares, and the derived keys."""

from __future__ import annotations

import hashlib
import struct

from privfed.secure.frames import NUMBER, BadMessage, sized
from privfed.secure.masked.shamir import LENGTH, PRIME
from privfed.secure.primitives import SEAL, KeyPair, LowOrder, derive

SEED, MASK_KEY, LAYERS = 0, 1, 2
"""Numbers of a client's secrets: its self-mask's seed, its mask key, its first layer's seed."""
HASH = 16
"""Bytes of the hash of a share. A second preimage takes 2^128 trials. A dealer could search for a
collision (2^64 trials), but would be identified whichever value is revealed.
"""
_WHICH = 9
"""Bytes of the number of a secret: a message may name any layer number of eight bytes."""
ShareHashes = tuple[tuple[int, bytes], ...]
"""Pairs of a holder and the concatenated hashes of its shares from one dealer; or, for one holder,
pairs of a dealer and these hashes.
"""


def sealed_size(layers: int) -> int:
    """Returns the size in bytes of a receiver's sealed shares of 2 secrets and `layers` seeds."""
    return (2 + layers) * LENGTH + 2 * NUMBER.size + SEAL


def share_text(sender: int, receiver: int, shares: tuple[int, ...]) -> bytes:
    """Returns the text to encrypt: `shares` of the sender's seed, mask key and layers' seeds."""
    values = b"".join(value.to_bytes(LENGTH, "little") for value in shares)
    return NUMBER.pack(sender) + NUMBER.pack(receiver) + values


def read_shares(text: bytes, sender: int, receiver: int, count: int) -> tuple[int, ...] | None:
    """Parses the `count` shares in `text`.

    Returns:
      The shares; None if sender, receiver or length differ, or a value is outside the field.
    """
    if len(text) != 2 * NUMBER.size + count * LENGTH:
        return None
    *names, values = struct.unpack(f"<QQ{count * LENGTH}s", text)
    if names != [sender, receiver]:
        return None
    shares = values_of(values)
    return shares if max(shares) < PRIME else None


def values_of(text: bytes) -> tuple[int, ...]:
    """Returns the numbers in `text`, each of `LENGTH` bytes."""
    starts = range(0, len(text), LENGTH)
    return tuple(int.from_bytes(text[at : at + LENGTH], "little") for at in starts)


def between(agreed: bytes, sender: int, receiver: int) -> bytes:
    """Returns the associated data of encrypted shares: roster hash `agreed`, sender, receiver."""
    return agreed + NUMBER.pack(sender) + NUMBER.pack(receiver)


def share_hash(agreed: bytes, dealer: int, holder: int, which: int, value: int) -> bytes:
    """Returns the hash `[16]` of `value`, the share of secret `which` from `dealer` for `holder`.

    The hash is bound to the roster of hash `agreed`. A share is uniform, even given fewer other
    shares than the threshold. If the hash is a random function, the hash reveals nothing about a
    share to a party that cannot try 2^256 values.
    """
    way = between(agreed, dealer, holder)
    text = (
        b"privfed share" + way + which.to_bytes(_WHICH, "little") + value.to_bytes(LENGTH, "little")
    )
    return hashlib.sha256(text).digest()[:HASH]


def share_hashes(agreed: bytes, dealer: int, holder: int, shares: tuple[int, ...]) -> bytes:
    """Returns the concatenated hashes of `shares`, which `dealer` dealt to `holder`.

    `agreed` is the hash of the roster.
    """
    return b"".join(
        share_hash(agreed, dealer, holder, which, value) for which, value in enumerate(shares)
    )


def hash_of(hashes: bytes, which: int) -> bytes:
    """Returns hash number `which` (from 0, as in `share_hash`) of the concatenated `hashes`."""
    return hashes[which * HASH : (which + 1) * HASH]


def acknowledged(agreed: bytes, holder: int, hashes: ShareHashes) -> bytes:
    """Returns the hash `[32]` by which `holder` acknowledges the shares that it received.

    `hashes` pairs each dealer with the hashes of its shares for `holder`.
    """
    texts = b"".join(NUMBER.pack(dealer) + sized(each) for dealer, each in hashes)
    text = b"privfed acknowledged" + agreed + NUMBER.pack(holder) + texts
    return hashlib.sha256(text).digest()


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
    """Returns a commitment `[32]` to a random `secret` under the roster of hash `agreed`.

    The hash identifies the secret and reveals nothing about it.
    """
    return hashlib.sha256(b"privfed commitment" + agreed + secret).digest()


def self_key(agreed: bytes, seed: bytes | bytearray) -> bytes:
    """Returns the key of a client's self-mask, from its `seed` and the roster hash `agreed`."""
    return derive(seed, agreed, b"self")


def channel_key(agreed: bytes, secret: bytes, sender: int, receiver: int) -> bytes:
    """Returns the key that encrypts shares from `sender` to `receiver`, for roster hash `agreed`.

    Each direction has its own key, so no nonce is used twice. `secret` is shared by the two.
    """
    return derive(secret, agreed, between(b"channel", sender, receiver))


def pair_key(agreed: bytes, secret: bytes, client: int, other: int) -> bytes:
    """Returns the key of the mask of two clients, from their shared `secret`; the same for both."""
    return derive(secret, agreed, between(b"pair", min(client, other), max(client, other)))
