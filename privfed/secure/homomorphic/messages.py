"""The messages of homomorphic sums: frozen values with one byte form each, all of them signed.

An `Opening` goes from the key holder to all, a `Row` from a client to the server, the `Total` from
the server to the key holder. The hash of the opening is the session's context, and every other
message names it. A signature is on the kind, the context, who or how many, and the hash of each
ciphertext, so that no byte of a message is without it. Numbers are little-endian.
"""

from __future__ import annotations

import hashlib
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privfed.secure.homomorphic.parameters import Scheme
from privfed.secure.masked.messages import BadMessage, Reader
from privfed.secure.primitives import KEY, SIGNATURE, verified

_FORMAT = b"PH2"
_NUMBER = struct.Struct("<Q")
_COUNT = struct.Struct("<I")
_START = len(_FORMAT) + 1
COUNT = _COUNT.size
HEADER = _START + KEY + _NUMBER.size + COUNT + SIGNATURE
"""Bytes of a row or a total beside its ciphertexts, each of which has its size before it."""
OPENING = _START + 4 * _NUMBER.size + 5 * COUNT + 3 * KEY + len("ckks") + SIGNATURE
"""Bytes of an opening beside its public key, with hashes of 32 bytes."""


@dataclass(frozen=True)
class _Signed(ABC):
    """What the messages have in common."""

    signature: bytes = field(default=bytes(SIGNATURE), kw_only=True)
    kind: ClassVar[int]
    author: ClassVar[str]

    @property
    def text(self) -> bytes:
        """What the signature is on: a text that no other message, session or protocol has."""
        return (
            b"privfed encrypted sum" + hashlib.sha256(bytes([self.kind]) + self._covered()).digest()
        )

    @abstractmethod
    def _covered(self) -> bytes:
        """All that the signature is on, beside the kind."""

    def signed(self, key: Ed25519PrivateKey) -> Self:
        return replace(self, signature=key.sign(self.text))

    def check(self, public: bytes) -> None:
        """Raises `BadMessage` where the holder of `public` did not sign it."""
        if not verified(public, self.signature, self.text):
            raise BadMessage("wrong signature", f"not what {self.author} signed")


@dataclass(frozen=True)
class Opening(_Signed):
    """Key holder to all: what is to be summed, and the key to encrypt it with.

    Its hash is the session's context; 32 fresh random bytes in `nonce` make it unlike any other.
    `agreed` is the hash of what the parties were configured with (`privfed.secure.agreement`).
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
        return _start(self.kind) + self._covered() + self.signature

    def _covered(self) -> bytes:
        numbers = (self.round, self.exchange, self.bits, self.length)
        texts = (self.scheme, self.model_hash, self.agreed, self.nonce, self.key)
        return b"".join([*map(_NUMBER.pack, numbers), *map(_sized, texts)])

    @classmethod
    def decode(cls, data: bytes) -> Opening:
        """Raises `BadMessage`."""
        reader = _begun(data, cls.kind)
        round, exchange, bits, length = (reader.number() for _ in range(4))
        scheme, *others = (reader.take(reader.small()) for _ in range(5))
        signature = reader.take(SIGNATURE)
        reader.end()
        return cls(scheme, round, exchange, bits, length, *others, signature=signature)

    @cached_property
    def context(self) -> bytes:
        return hashlib.sha256(_start(self.kind) + self._covered()).digest()


@dataclass(frozen=True)
class _Encrypted(_Signed):
    """Ciphertexts of one session, one for each block of a row."""

    context: bytes
    number: int
    blocks: tuple[bytes, ...]

    def encode(self) -> bytes:
        head = _start(self.kind) + self._head() + self.signature
        return head + b"".join(map(_sized, self.blocks))

    def _head(self) -> bytes:
        return self.context + _NUMBER.pack(self.number) + _COUNT.pack(len(self.blocks))

    def _covered(self) -> bytes:
        return self._head() + b"".join(hashlib.sha256(block).digest() for block in self.blocks)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises `BadMessage`."""
        reader = _begun(data, cls.kind)
        context, number, count = reader.take(KEY), reader.number(), reader.small()
        signature = reader.take(SIGNATURE)
        blocks = tuple(reader.take(reader.small()) for _ in range(count))
        reader.end()
        return cls(context, number, blocks, signature=signature)

    def ciphertexts(self, scheme: Scheme, key: Any, length: int) -> list[Any]:
        """Those of a row `[length]`, checked for `key`. Raises `BadMessage`."""
        sizes = scheme.blocks(length)
        if len(self.blocks) != len(sizes):
            raise BadMessage(
                "wrong length", f"{len(self.blocks)} ciphertexts; expected {len(sizes)}"
            )
        return [scheme.read(key, *one) for one in zip(self.blocks, sizes, strict=True)]


@dataclass(frozen=True)
class Row(_Encrypted):
    """Client to server. `number` is the sender."""

    kind: ClassVar[int] = 2
    author: ClassVar[str] = "its client"


@dataclass(frozen=True)
class Total(_Encrypted):
    """Server to key holder. `number` is of how many rows."""

    kind: ClassVar[int] = 3
    author: ClassVar[str] = "the server"


def _start(kind: int) -> bytes:
    return _FORMAT + bytes([kind])


def _sized(text: bytes) -> bytes:
    return _COUNT.pack(len(text)) + text


def _begun(data: bytes, kind: int) -> Reader:
    reader = Reader(data)
    if reader.take(len(_FORMAT)) != _FORMAT:
        raise BadMessage("wrong format", "bytes that are no message of this version")
    if reader.take(1) != bytes([kind]):
        raise BadMessage("wrong type", "a message of another kind")
    return reader
