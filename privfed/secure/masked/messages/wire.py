"""The messages of masked sums: frozen values with one byte form each, which is checked whole.

Every message begins with four bytes of format and kind, and the 32-byte context of its session: the
hash of the invitation, which binds round, exchange, model, and the hash of all settings that both
sides have to share. A replayed invitation has the same one. The roster's hash binds besides who
takes part, and a nonce of each of them: no client ever agrees to the same roster twice, and votes
and sealed shares are bound to it. Numbers are little-endian. Bytes that are no message,
or more or less than one, raise `BadMessage`.
"""

from __future__ import annotations

from collections.abc import Callable

from privfed.secure.agreement import PROTOCOL
from privfed.secure.frames import BadMessage, Reader
from privfed.secure.masked.messages.roster import Advertise, Invitation, Roster
from privfed.secure.masked.messages.rows import Inbox, Masked, Shares
from privfed.secure.masked.messages.unmasking import Survivors, Unmask, Vote, Votes
from privfed.secure.primitives import KEY

FromServer = Invitation | Roster | Inbox | Survivors | Votes
FromClient = Advertise | Shares | Masked | Vote | Unmask
Message = FromServer | FromClient

_FORMAT = b"PS%d" % PROTOCOL
_KINDS: dict[int, Callable[[bytes, Reader], Message]] = {
    kind.kind: kind.read
    for kind in (
        *(Invitation, Advertise, Roster, Shares, Inbox),
        *(Masked, Survivors, Vote, Votes, Unmask),
    )
}


def encode(message: Message) -> bytes:
    """The byte form of `message`."""
    return b"".join((_FORMAT, bytes([message.kind]), message.context, message.body()))


def decode(data: bytes) -> Message:
    """The message that these bytes are. Raises `BadMessage`."""
    reader = Reader(data)
    if reader.take(len(_FORMAT)) != _FORMAT:
        raise BadMessage("wrong format", "bytes that are no message of this version")
    read = _KINDS.get(reader.take(1)[0])
    if read is None:
        raise BadMessage("wrong type", "a message of no known kind")
    message = read(reader.take(KEY), reader)
    reader.end()
    return message
