"""The messages by which a session begins: who is invited, with which keys, and who takes part."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

from privfed.secure.frames import NUMBER, BadMessage, Reader, records
from privfed.secure.masked.messages.message import ClientMessage, WireMessage
from privfed.secure.primitives import KEY, SIGNATURE


@dataclass(frozen=True)
class Invitation(WireMessage):
    """Server to all: what is to be summed. Its hash is the session's context."""

    session: bytes
    round: int
    exchange: int
    model_hash: bytes
    bits: int
    length: int
    agreement: bytes
    kind: ClassVar[int] = 1

    @property
    def context(self) -> bytes:
        """The hash of all that it says, which every message of the session names."""
        return hashlib.sha256(b"privfed invitation" + self.body()).digest()

    def body(self) -> bytes:
        numbers = (self.round, self.exchange, self.bits, self.length)
        start = self.session + self.model_hash + self.agreement
        return start + b"".join(map(NUMBER.pack, numbers))

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Invitation:
        session, model_hash, agreement = (data.take(KEY) for _ in range(3))
        round, exchange, bits, length = (data.number() for _ in range(4))
        invitation = cls(session, round, exchange, model_hash, bits, length, agreement)
        if invitation.context != context:
            raise BadMessage("wrong session", "an invitation that is not of its own context")
        return invitation


@dataclass(frozen=True)
class Advertise(ClientMessage):
    """Client to server, and on to its neighbours: a nonce and its two public keys, signed."""

    nonce: bytes
    channel: bytes
    mask: bytes
    kind: ClassVar[int] = 2
    size: ClassVar[int] = NUMBER.size + 3 * KEY + SIGNATURE

    @property
    def text(self) -> bytes:
        return b"privfed keys" + self.covered()

    def content(self) -> bytes:
        return self.nonce + self.channel + self.mask

    def body(self) -> bytes:
        return NUMBER.pack(self.sender) + self.content() + self.signature

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Advertise:
        sender, (nonce, channel, mask) = data.number(), (data.take(KEY) for _ in range(3))
        return cls(context, sender, nonce, channel, mask, signature=data.take(SIGNATURE))


@dataclass(frozen=True)
class Roster(WireMessage):
    """Server to one client: who takes part, the graph that was drawn, and its neighbours' keys.

    Of each of the `clients` one of the `nonces`, in order.
    """

    context: bytes
    clients: tuple[int, ...]
    nonces: tuple[bytes, ...]
    degree: int
    threshold: int
    seed: bytes
    keys: tuple[Advertise, ...]
    kind: ClassVar[int] = 3

    def agreed(self) -> bytes:
        """The hash of what everybody's roster has to say alike."""
        return hashlib.sha256(b"privfed roster" + self.context + self._common()).digest()

    def _common(self) -> bytes:
        pairs = zip(self.clients, self.nonces, strict=True)
        members = records([NUMBER.pack(client) + nonce for client, nonce in pairs])
        return members + NUMBER.pack(self.degree) + NUMBER.pack(self.threshold) + self.seed

    def body(self) -> bytes:
        return self._common() + records([keys.body() for keys in self.keys])

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Roster:
        members = data.records(NUMBER.size + KEY)
        pairs = [(member.number(), member.take(KEY)) for member in members]
        clients, nonces = tuple(who for who, _ in pairs), tuple(nonce for _, nonce in pairs)
        degree, threshold, seed = data.number(), data.number(), data.take(KEY)
        keys = tuple(Advertise.read(context, record) for record in data.records(Advertise.size))
        return cls(context, clients, nonces, degree, threshold, seed, keys)
