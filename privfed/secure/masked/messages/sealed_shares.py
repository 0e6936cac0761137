"""The text in which a client seals its shares for a neighbour, and the hashes of what is in it."""

from __future__ import annotations

import hashlib
import struct

from privfed.secure.frames import NUMBER, sized
from privfed.secure.masked.shamir import LENGTH, PRIME
from privfed.secure.primitives import SEAL

SEED, MASK_KEY, LAYERS = 0, 1, 2
"""Which of a client's secrets: the seed of its own mask, its mask key, its first layer's seed."""
HASH = 16
"""Bytes of the hash of a share. A second value with the same one takes 2^128 trials. Who deals may
look for two such values (2^64), and is caught by whichever of them is told."""
_WHICH = 9
"""Bytes of the number of a secret: a message may name any layer of eight bytes."""
ShareHashes = tuple[tuple[int, bytes], ...]
"""Hashes of shares of all secrets of a client, one after the other, each with the other client."""


def sealed_size(layers: int) -> int:
    """Bytes of sealed shares of two secrets and `layers` more, with whom they are from and to."""
    return (2 + layers) * LENGTH + 2 * NUMBER.size + SEAL


def share_text(sender: int, receiver: int, shares: tuple[int, ...]) -> bytes:
    """What is sealed for `receiver`: shares of the sender's seed, key, and layers' seeds."""
    values = b"".join(value.to_bytes(LENGTH, "little") for value in shares)
    return NUMBER.pack(sender) + NUMBER.pack(receiver) + values


def read_shares(text: bytes, sender: int, receiver: int, count: int) -> tuple[int, ...] | None:
    """The `count` shares in `text`.

    None where it is not from `sender` to `receiver`, has another length, or has a value that no
    share can have.
    """
    if len(text) != 2 * NUMBER.size + count * LENGTH:
        return None
    *names, values = struct.unpack(f"<QQ{count * LENGTH}s", text)
    if names != [sender, receiver]:
        return None
    shares = values_of(values)
    return shares if max(shares) < PRIME else None


def values_of(text: bytes) -> tuple[int, ...]:
    """The values of shares in `text`, one after another."""
    starts = range(0, len(text), LENGTH)
    return tuple(int.from_bytes(text[at : at + LENGTH], "little") for at in starts)


def between(agreed: bytes, sender: int, receiver: int) -> bytes:
    """What a sealed text is bound to: the roster under which it was dealt, and whom it is for."""
    return agreed + NUMBER.pack(sender) + NUMBER.pack(receiver)


def share_hash(agreed: bytes, dealer: int, holder: int, which: int, value: int) -> bytes:
    """The hash `[16]` of the share `value` of secret `which`, of `dealer` for `holder`.

    A share is uniform, also beside others that are fewer than the threshold: where the hash is a
    random function it tells nothing of a share to who cannot try 2^256 values.
    """
    way = between(agreed, dealer, holder)
    text = (
        b"privfed share" + way + which.to_bytes(_WHICH, "little") + value.to_bytes(LENGTH, "little")
    )
    return hashlib.sha256(text).digest()[:HASH]


def share_hashes(agreed: bytes, dealer: int, holder: int, shares: tuple[int, ...]) -> bytes:
    """The hashes of the `shares` that `dealer` dealt to `holder` under the roster `agreed`."""
    return b"".join(
        share_hash(agreed, dealer, holder, which, value) for which, value in enumerate(shares)
    )


def hash_of(hashes: bytes, which: int) -> bytes:
    """The hash of the share of secret `which`."""
    return hashes[which * HASH : (which + 1) * HASH]


def acknowledged(agreed: bytes, holder: int, hashes: ShareHashes) -> bytes:
    """The hash `[32]` of all hashes of shares that `holder` was handed, with who dealt them."""
    texts = b"".join(NUMBER.pack(dealer) + sized(each) for dealer, each in hashes)
    text = b"privfed acknowledged" + agreed + NUMBER.pack(holder) + texts
    return hashlib.sha256(text).digest()
