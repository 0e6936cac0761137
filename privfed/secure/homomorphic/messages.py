"""The messages of homomorphic sums: each is a signed frozen value with one byte form.

An `Opening` goes from the key holder to all, a `Row` from a client to the server, the `Total` from
the server to the key holder. The hash of the opening is the session's context, which every other
message contains. A signature covers the kind, the context, the sender or count, and the hash of
each ciphertext, so that it covers every byte of a message. Numbers are little-endian.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

from privfed.secure.frames import COUNT, NUMBER, BadMessage, Reader, sized
from privfed.secure.homomorphic.schemes import Scheme
from privfed.secure.primitives import KEY, SIGNATURE, SignedMessage

_FORMAT = b"PH2"
_START = len(_FORMAT) + 1
SIZE = COUNT.size
"""Bytes of the size that precedes a text."""
HEADER = _START + KEY + NUMBER.size + SIZE + SIGNATURE
"""Bytes of a row or a total without its ciphertexts and their sizes."""
OPENING = _START + 4 * NUMBER.size + 5 * SIZE + 3 * KEY + len("ckks") + SIGNATURE
"""Bytes of a CKKS opening with hashes of 32 bytes, without its public key; one less for BFV."""


@dataclass(frozen=True)
class _Signed(SignedMessage):
    """Base class of messages that their authors sign."""

    author: ClassVar[str]
    domain: ClassVar[bytes] = b"privfed encrypted sum"

    def check(self, public: bytes) -> None:
        """Raises `BadMessage` unless the holder of `public` signed the message."""
        if not self.signed_by(public):
            raise BadMessage("wrong signature", f"the message is not what {self.author} signed")


@dataclass(frozen=True)
class Opening(_Signed):
    """Message of the key holder to all parties: the sum's properties, and the encryption key.

    Its hash is the session's context; 32 fresh random bytes in `nonce` make it unique. `agreed` is
    the hash of the parties' configuration (`privfed.secure.agreement`).
    """

    scheme: bytes
    round: int
    exchange: int
    bits: int
    length: int
    model_hash: bytes
    agreed: bytes
    nonce: bytes
    key: bytes
    kind: ClassVar[int] = 1
    author: ClassVar[str] = "the key holder"

    def encode(self) -> bytes:
        """Returns the byte form of this message."""
        return b"".join((_start(self.kind), *self.covered(), self.signature))

    def covered(self) -> tuple[bytes, ...]:
        numbers = (self.round, self.exchange, self.bits, self.length)
        texts = (self.scheme, self.model_hash, self.agreed, self.nonce, self.key)
        return *map(NUMBER.pack, numbers), *map(sized, texts)

    @classmethod
    def decode(cls, data: bytes) -> Opening:
        """Parses an opening. Raises `BadMessage` if it is malformed."""
        reader = _begun(data, cls.kind)
        round, exchange, bits, length = (reader.number() for _ in range(4))
        scheme, *others = (reader.sized() for _ in range(5))
        signature = reader.take(SIGNATURE)
        reader.end()
        return cls(scheme, round, exchange, bits, length, *others, signature=signature)

    @cached_property
    def context(self) -> bytes:
        """The hash of all fields, which every other message of the session contains."""
        return hashlib.sha256(b"".join((_start(self.kind), *self.covered()))).digest()


@dataclass(frozen=True)
class _Encrypted(_Signed):
    """Ciphertexts of one session, one for each block of a row."""

    context: bytes
    number: int
    blocks: tuple[bytes, ...]

    def encode(self) -> bytes:
        """Returns the byte form of this message."""
        head = _start(self.kind) + self._head() + self.signature
        return head + b"".join(map(sized, self.blocks))

    def _head(self) -> bytes:
        return self.context + NUMBER.pack(self.number) + COUNT.pack(len(self.blocks))

    def covered(self) -> tuple[bytes, ...]:
        return self._head(), *(hashlib.sha256(block).digest() for block in self.blocks)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Parses a message. Raises `BadMessage` if it is malformed."""
        reader = _begun(data, cls.kind)
        context, number, count = reader.take(KEY), reader.number(), reader.count()
        signature = reader.take(SIGNATURE)
        blocks = tuple(reader.sized() for _ in range(count))
        reader.end()
        return cls(context, number, blocks, signature=signature)

    def ciphertexts(self, scheme: Scheme, key: Any, length: int) -> list[Any]:
        """Returns the ciphertexts of a row `[length]`.

        Raises `BadMessage` unless their number and sizes fit the row, and their form and parameters
        those of the scheme and `key`.
        """
        sizes = scheme.blocks(length)
        if len(self.blocks) != len(sizes):
            raise BadMessage(
                "wrong length", f"{len(self.blocks)} ciphertexts; expected {len(sizes)}"
            )
        pairs = zip(self.blocks, sizes, strict=True)
        return [scheme.read(key, block, size) for block, size in pairs]


@dataclass(frozen=True)
class Row(_Encrypted):
    """Message of a client to the server: an encrypted row. `number` is the client's number."""

    kind: ClassVar[int] = 2
    author: ClassVar[str] = "its client"


@dataclass(frozen=True)
class Total(_Encrypted):
    """Message of the server to the key holder: the encrypted sum of `number` rows."""

    kind: ClassVar[int] = 3
    author: ClassVar[str] = "the server"


def _start(kind: int) -> bytes:
    return _FORMAT + bytes([kind])


def _begun(data: bytes, kind: int) -> Reader:
    reader = Reader(data)
    if reader.take(len(_FORMAT)) != _FORMAT:
        raise BadMessage("wrong format", "the bytes are no message of this version")
    if reader.take(1) != bytes([kind]):
        raise BadMessage("wrong type", "the message is of another kind")
    return reader
