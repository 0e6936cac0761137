"""What clients derive from what two of them agreed on, for one roster of one exchange."""

from __future__ import annotations

from privfed.secure.frames import NUMBER, BadMessage
from privfed.secure.primitives import KeyPair, LowOrder, derive


def agree(pair: KeyPair, public: bytes) -> bytes:
    """The secret that `pair` shares with the holder of `public`. Raises `BadMessage`."""
    try:
        return pair.agree(public)
    except LowOrder as error:
        raise BadMessage("low-order key", str(error)) from error


def run_secret(book: bytes, secret: bytes, client: int, other: int) -> bytes:
    """s_uv `[32]`: what two clients begin a run with, from what their keys in `book` agree on."""
    return derive(secret, book, b"committee run" + _between(*sorted((client, other))))


def pair_seed(agreed: bytes, secret: bytes, client: int, other: int) -> bytes:
    """r_uv `[32]`: what two clients mask with under the roster with the hash `agreed`."""
    return derive(secret, agreed, b"committee pair" + _between(*sorted((client, other))))


def mask_key(agreed: bytes, seed: bytes) -> bytes:
    """What a mask is expanded from: of a pair's seed, or of a client's fresh one."""
    return derive(seed, agreed, b"committee mask")


def sealing_key(agreed: bytes, secret: bytes, sender: int, receiver: int) -> bytes:
    """What a member's key is sealed with: one text for each roster and direction."""
    return derive(secret, agreed, b"committee seal" + _between(sender, receiver))


def _between(client: int, other: int) -> bytes:
    return NUMBER.pack(client) + NUMBER.pack(other)


def shares_context(agreed: bytes, sender: int, receiver: int) -> bytes:
    """What a sealed text is bound to: the roster under which it was dealt, and whom it is for."""
    return agreed + _between(sender, receiver)
