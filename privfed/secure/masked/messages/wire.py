"""The wire format of masked sums: each message is a frozen value with one validated byte form.

Every message begins with four bytes of format and kind, and the 32-byte context of its session. The
context is the hash of the invitation, which binds round, exchange, model, and the hash of all
settings that both sides must share. A replayed invitation has the same context. The roster's hash
also binds the participants and a nonce of each, so no client ever agrees to the same roster twice.
Votes and sealed shares are bound to the roster's hash. Numbers are little-endian. Bytes that are
not exactly one message raise `BadMessage`.
"""

from __future__ import annotations

from privfed.secure.masked.messages.message import Forms
from privfed.secure.masked.messages.roster import Advertise, Invitation, Roster
from privfed.secure.masked.messages.rows import Inbox, Masked, Shares
from privfed.secure.masked.messages.unmasking import Survivors, Unmask, Vote, Votes

FromServer = Invitation | Roster | Inbox | Survivors | Votes
FromClient = Advertise | Shares | Masked | Vote | Unmask
Message = FromServer | FromClient

_FORMS: Forms[Message] = Forms(
    b"PS", (Invitation, Advertise, Roster, Shares, Inbox, Masked, Survivors, Vote, Votes, Unmask)
)


def encode(message: Message) -> bytes:
    """Returns the byte form of `message`."""
    return _FORMS.encode(message)


def decode(data: bytes) -> Message:
    """Parses a message. Raises `BadMessage` if it is malformed."""
    return _FORMS.decode(data)
