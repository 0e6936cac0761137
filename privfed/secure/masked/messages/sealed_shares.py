"""The text in which a client seals its shares for a neighbour."""

from __future__ import annotations

import struct

from privfed.secure.frames import NUMBER
from privfed.secure.masked.shamir import LENGTH, PRIME
from privfed.secure.primitives import SEAL


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
