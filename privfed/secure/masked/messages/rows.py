"""The messages by which secrets are shared and masked rows are sent."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

from privfed.secure.frames import COUNT, NUMBER, Reader, records, sized
from privfed.secure.masked.messages.attestation import Attestation
from privfed.secure.masked.messages.message import ClientMessage, WireMessage, read_sender
from privfed.secure.packing import Bytes
from privfed.secure.primitives import KEY

SealedShares = tuple[tuple[int, bytes], ...]
"""Sealed texts, each with the client whom it is for, or from."""


@dataclass(frozen=True)
class Shares(ClientMessage):
    """Client to server: sealed shares of its two secrets, one pair for each neighbour.

    By `commitment`, a hash of the self-mask's seed, and `layer_commitment`, one of the seed of the
    last layer of noise (if there are any), the server knows wrong ones.
    """

    commitment: bytes
    layer_commitment: bytes
    sealed: SealedShares
    kind: ClassVar[int] = 4

    def content(self) -> bytes:
        return self.commitment + self.layer_commitment + _packed(self.sealed)

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Shares:
        signature, sender = read_sender(data)
        commitments = data.take(KEY), data.take(KEY)
        return cls(context, sender, *commitments, _unpacked(data), signature=signature)


@dataclass(frozen=True)
class Inbox(WireMessage):
    """Server to one client: the sealed shares that its neighbours sent it."""

    context: bytes
    sealed: SealedShares
    kind: ClassVar[int] = 5

    def body(self) -> bytes:
        return _packed(self.sealed)

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Inbox:
        return cls(context, _unpacked(data))


def _packed(sealed: SealedShares) -> bytes:
    size = max((len(text) for _, text in sealed), default=0)
    return COUNT.pack(size) + records([NUMBER.pack(client) + text for client, text in sealed])


def _unpacked(data: Reader) -> SealedShares:
    return tuple(data.records(struct.Struct(f"<Q{data.count()}s")))


@dataclass(frozen=True)
class Masked(ClientMessage):
    """Client to server: its masked row, packed, and on a random graph whom it masked with."""

    words: Bytes
    """Where they lie in what was read, which nobody may change before they are added."""
    attestation: Attestation | None = None
    kind: ClassVar[int] = 6

    def head(self) -> bytes:
        return sized(self.attestation.body() if self.attestation else b"")

    def content(self) -> Bytes:
        return self.words

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Masked:
        (signature, sender), attested = read_sender(data), Reader(data.sized())
        attestation = None if attested.ended() else Attestation.read(attested)
        attested.end()
        return cls(context, sender, data.rest_in_place(), attestation, signature=signature)
