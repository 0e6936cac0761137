"""The messages that share secrets and carry masked rows."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from privfed.secure.frames import COUNT, NUMBER, Reader, records, sized
from privfed.secure.masked.messages.message import ClientMessage, WireMessage, read_sender
from privfed.secure.masked.messages.roster import Attestation
from privfed.secure.masked.messages.sealed_shares import ShareHashes
from privfed.secure.packing import Bytes
from privfed.secure.primitives import KEY

SealedShares = tuple[tuple[int, bytes], ...]
"""Sealed texts, each with the number of its recipient (when sent) or its sender (when received)."""


@dataclass(frozen=True)
class Dealing(ClientMessage):
    """The signed part of a client's `Shares`: the sealed texts are replaced by their hash.

    `commitment` is a hash of the self-mask's seed, `layer_commitment` a hash of the last layer's
    seed (if there are layers): with them, wrong secrets are detected. `hashes` are hashes of each
    holder's shares, with which wrong shares are detected.
    """

    commitment: bytes
    layer_commitment: bytes
    hashes: ShareHashes
    texts: bytes
    kind: ClassVar[int] = 4

    @cached_property
    def by_holder(self) -> Mapping[int, bytes]:
        """The hashes of the shares of each holder."""
        return dict(self.hashes)

    def content(self) -> bytes:
        return self.commitment + self.layer_commitment + _packed(self.hashes) + self.texts

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Dealing:
        signature, sender = read_sender(data)
        commitments = data.take(KEY), data.take(KEY)
        hashes, texts = _unpacked(data), data.take(KEY)
        return cls(context, sender, *commitments, hashes, texts, signature=signature)


@dataclass(frozen=True)
class Shares(ClientMessage):
    """Message of a client to the server: encrypted shares of its secrets, and the shares' hashes.

    `sealed` has a text for each neighbour. `hashes` has an entry for each holder, including the
    client itself on the complete graph. The client signs its `Dealing`.
    """

    commitment: bytes
    layer_commitment: bytes
    hashes: ShareHashes
    sealed: SealedShares
    kind: ClassVar[int] = 4

    @property
    def dealing(self) -> Dealing:
        """The part of the message that the client signs."""
        commitments = self.commitment, self.layer_commitment
        texts = hashlib.sha256(_packed(self.sealed)).digest()
        return Dealing(
            self.context, self.sender, *commitments, self.hashes, texts, signature=self.signature
        )

    @property
    def text(self) -> bytes:
        return self.dealing.text

    def content(self) -> bytes:
        commitments = self.commitment + self.layer_commitment
        return commitments + _packed(self.hashes) + _packed(self.sealed)

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Shares:
        signature, sender = read_sender(data)
        commitments = data.take(KEY), data.take(KEY)
        hashes, sealed = _unpacked(data), _unpacked(data)
        return cls(context, sender, *commitments, hashes, sealed, signature=signature)


@dataclass(frozen=True)
class Inbox(WireMessage):
    """Message of the server to one client: neighbours' sealed shares, and the hashes of these."""

    context: bytes
    sealed: SealedShares
    hashes: ShareHashes
    kind: ClassVar[int] = 5

    def body(self) -> bytes:
        return _packed(self.sealed) + _packed(self.hashes)

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Inbox:
        return cls(context, _unpacked(data), _unpacked(data))


def _packed(sealed: SealedShares) -> bytes:
    size = max((len(text) for _, text in sealed), default=0)
    return COUNT.pack(size) + records([NUMBER.pack(client) + text for client, text in sealed])


def _unpacked(data: Reader) -> SealedShares:
    return tuple(data.records(struct.Struct(f"<Q{data.count()}s")))


@dataclass(frozen=True)
class Masked(ClientMessage):
    """Message of a client to the server: its masked row, and the senders of unusable shares.

    `words` is the packed row, and `complaints` are the neighbours whose shares were unusable.
    Unusable shares could not be opened, or their hashes are not those that the neighbour signed. On
    a random graph the client attests which clients it masked with.
    """

    words: Bytes
    """A view into the received message; the message must not change before the words are added."""
    complaints: tuple[int, ...] = ()
    attestation: Attestation | None = None
    kind: ClassVar[int] = 6

    def parts(self) -> tuple[Bytes, ...]:
        attested = sized(self.attestation.body() if self.attestation else b"")
        return attested, records([NUMBER.pack(client) for client in self.complaints]), self.words

    def content(self) -> bytes:
        return b"".join(self.parts())

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Masked:
        (signature, sender), attested = read_sender(data), Reader(data.sized())
        attestation = None if attested.ended() else Attestation.read(attested)
        attested.end()
        complaints = tuple(client for (client,) in data.records(NUMBER))
        words = data.rest_view()
        return cls(context, sender, words, complaints, attestation, signature=signature)
