"""The first messages of a session: invitation, clients' keys and roster."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

from privfed.secure.frames import COUNT, NUMBER, BadMessage, Reader, records
from privfed.secure.masked.messages.message import ClientMessage, WireMessage
from privfed.secure.primitives import KEY, SIGNATURE, verified


@dataclass(frozen=True)
class Attestation:
    """A client's signed statement that it masked its row with all neighbours except `left_out`.

    The client sends it to the server with its row; the server forwards it to the client's
    neighbours with the survivors.
    """

    sender: int
    left_out: tuple[int, ...]
    signature: bytes
    size: ClassVar[int] = NUMBER.size + SIGNATURE + COUNT.size
    """Size in bytes if `left_out` is empty."""

    @staticmethod
    def text(agreed: bytes, sender: int, left_out: tuple[int, ...]) -> bytes:
        """Returns the text that `sender` signs under the roster with the hash `agreed`."""
        return b"privfed masked with" + agreed + NUMBER.pack(sender) + _packed(left_out)

    def given_by(self, public: bytes, agreed: bytes) -> bool:
        """Whether the holder of `public` signed this under the roster of hash `agreed`."""
        return verified(public, self.signature, self.text(agreed, self.sender, self.left_out))

    def body(self) -> bytes:
        """Returns the attestation's bytes: the sender, the signature and `left_out`."""
        return NUMBER.pack(self.sender) + self.signature + _packed(self.left_out)

    @classmethod
    def read(cls, data: Reader) -> Attestation:
        """Parses the next attestation. Raises `BadMessage` if it is malformed."""
        sender, signature = data.number(), data.take(SIGNATURE)
        left_out = tuple(client for (client,) in data.records(NUMBER))
        return cls(sender, left_out, signature)


def _packed(clients: tuple[int, ...]) -> bytes:
    return records([NUMBER.pack(client) for client in clients])


_MEMBER = struct.Struct(f"<Q{KEY}s")
_ADVERTISED = struct.Struct(f"<Q{KEY}s{KEY}s{KEY}s{SIGNATURE}s")


@dataclass(frozen=True)
class Invitation(WireMessage):
    """Message of the server to all clients: the sum's properties. Its hash is the context.

    `session` is a random number `[32]` of the server; `agreement` is the hash of the configuration.
    """

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
        """The hash of the invitation, which every message of the session carries."""
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
            raise BadMessage("wrong session", "the invitation's session is not its hash")
        return invitation


@dataclass(frozen=True)
class Advertise(ClientMessage):
    """Message of a client to the server: a nonce, and public keys for channels and for masks.

    The server forwards it to the client's neighbours.
    """

    nonce: bytes
    channel: bytes
    mask: bytes
    kind: ClassVar[int] = 2
    size: ClassVar[int] = _ADVERTISED.size

    @property
    def text(self) -> bytes:
        return b"".join((b"privfed keys", *self.covered()))

    def content(self) -> bytes:
        return self.nonce + self.channel + self.mask

    def body(self) -> bytes:
        return self._body

    @cached_property
    def _body(self) -> bytes:
        """The body, cached because the server sends it to each neighbour."""
        return NUMBER.pack(self.sender) + self.content() + self.signature

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Advertise:
        sender, nonce, channel, mask, signature = data.fields(_ADVERTISED)
        return cls(context, sender, nonce, channel, mask, signature=signature)


@dataclass(frozen=True)
class Roster(WireMessage):
    """Message of the server to one client: all participants, and the keys of its neighbours.

    `nonces` holds one nonce for each of the `clients`, in the same order. `degree`, `threshold` and
    `seed` determine the graph; `keys` holds the neighbours' messages.
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
        """Returns the hash of the context and of all that is the same in every client's roster."""
        return hashlib.sha256(b"privfed roster" + self.context + self._common()).digest()

    def _common(self) -> bytes:
        return _common(self.clients, self.nonces, self.degree, self.threshold, self.seed)

    def body(self) -> bytes:
        return self._common() + records([keys.body() for keys in self.keys])

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Roster:
        pairs = list(data.records(_MEMBER))
        clients, nonces = tuple(who for who, _ in pairs), tuple(nonce for _, nonce in pairs)
        degree, threshold, seed = data.number(), data.number(), data.take(KEY)
        keys = tuple(
            Advertise(context, sender, nonce, channel, mask, signature=signature)
            for sender, nonce, channel, mask, signature in data.records(_ADVERTISED)
        )
        return cls(context, clients, nonces, degree, threshold, seed, keys)


@lru_cache(maxsize=4)
def _common(
    clients: tuple[int, ...], nonces: tuple[bytes, ...], degree: int, threshold: int, seed: bytes
) -> bytes:
    """Returns the bytes of all but the keys, the same in every client's roster; cached."""
    members = records([_MEMBER.pack(*pair) for pair in zip(clients, nonces, strict=True)])
    return members + NUMBER.pack(degree) + NUMBER.pack(threshold) + seed
