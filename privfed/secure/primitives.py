"""Cryptographic primitives of secure sums, all from the `cryptography` library.

X25519 (RFC 7748) agrees on secrets, HKDF-SHA256 (RFC 5869) turns them into keys that are bound to a
session and a purpose, AES-256-CTR (NIST SP 800-38A) expands keys into masks, ChaCha20-Poly1305 (RFC
8439) seals shares, Ed25519 (RFC 8032) signs. Every key is used once, with a zero nonce.
"""

from __future__ import annotations

import functools
import hashlib
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self
from weakref import WeakValueDictionary

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from privfed.secure.packing import Bytes, PackedRows, Words

KEY = 32
"""Bytes of every key, seed and hash."""
SIGNATURE = 64
SEAL = 16
"""Bytes that sealing adds to a text."""
_BLOCK = 1 << 18
"""Bytes of a mask that are expanded at once: they stay in the processor's cache until added."""
_FROM_ZERO = CTR(bytes(16))


class LowOrder(ValueError):
    """Raised for a public key of low order: every private key agrees with it on the secret zero."""


def random_key() -> bytearray:
    """Returns 32 bytes from the operating system's CSPRNG, in a buffer that can be wiped."""
    return bytearray(os.urandom(KEY))


def wipe(secret: bytearray) -> None:
    """Overwrites `secret`. Copies made by the interpreter or a library are not overwritten."""
    secret[:] = bytes(len(secret))


class KeyPair:
    """An X25519 key pair, parsed once.

    If both pairs are in one process, as in a simulation, their secret is computed once: the first
    `agree` stores it for the second pair's `agree`. A pair whose partner is in another process
    stores nothing.
    """

    _living: ClassVar[WeakValueDictionary[bytes, KeyPair]] = WeakValueDictionary()

    def __init__(self, private: bytes | bytearray) -> None:
        self._key = X25519PrivateKey.from_private_bytes(private)
        self.public = self._key.public_key().public_bytes_raw()
        self._agreed: dict[bytes, bytes] = {}
        self._living[self.public] = self

    def agree(self, public: bytes) -> bytes:
        """Returns the secret shared with the holder of `public`.

        Raises `LowOrder` if `public` is of low order, or is not 32 bytes.
        """
        if secret := self._agreed.pop(public, None):
            return secret
        try:
            secret = self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise LowOrder("a public key of low order") from error
        if other := self._living.get(public):
            other._agreed[self.public] = secret
        return secret

    @classmethod
    def clear_agreements(cls) -> None:
        """Stops the sharing of secrets between existing pairs, as if in separate processes.

        A secret that was already stored for a pair remains.
        """
        cls._living.clear()


def derive(secret: bytes | bytearray, context: bytes, purpose: bytes) -> bytes:
    """Derives a key by HKDF-SHA256.

    Args:
      secret: input key.
      context: salt that identifies the session.
      purpose: purpose of the key.

    Returns:
      32 bytes.
    """
    return HKDF(SHA256(), KEY, salt=context, info=purpose).derive(secret)


def seal(key: bytes, text: bytes, associated: bytes) -> bytes:
    """Encrypts and authenticates a text by ChaCha20-Poly1305.

    Args:
      key: 32 bytes; a key must encrypt only one text.
      text: the plain text.
      associated: further authenticated data.

    Returns:
      The ciphertext, `SEAL` bytes longer than the text.
    """
    return ChaCha20Poly1305(key).encrypt(bytes(12), text, associated)


def unseal(key: bytes, sealed: bytes, associated: bytes) -> bytes | None:
    """Decrypts the result of `seal`; other arguments are as for `seal`.

    Returns:
      The text; None if it was not encrypted with this key and `associated`.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, associated)
    except InvalidTag:
        return None


def signing_key(seed: bytes) -> Ed25519PrivateKey:
    """Returns the Ed25519 signing key of a `seed` `[32]`."""
    return Ed25519PrivateKey.from_private_bytes(seed)


@functools.lru_cache(maxsize=1 << 12)
def verified(public: bytes, signature: bytes, text: bytes) -> bool:
    """Whether `signature` on `text` was made by the holder of `public`.

    The result is False for a malformed key. Results are cached: in a simulation many clients check
    the same signature in one process.
    """
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


class Expander(PackedRows):
    """Expands keys into masks of rows and adds them; one block of a mask is in memory at a time."""

    def __init__(self, length: int, bits: int) -> None:
        super().__init__(length, bits)
        self._step = min(_BLOCK // self.word.itemsize, max(length, 1))
        self._zeros = bytes(self._step * self.word.itemsize)
        self._stream = bytearray(len(self._zeros) + 15)  # length that the library requires
        self._words = np.frombuffer(self._stream, self.word, count=self._step)

    def apply(self, total: Words, key: bytes, subtract: bool = False) -> None:
        """Adds a mask to a row, or subtracts it, in place and modulo the word size.

        Args:
          total: row of words, shape [length].
          key: key of the mask, 32 bytes.
          subtract: whether to subtract the mask.
        """
        stream = Cipher(AES256(key), _FROM_ZERO).encryptor()
        for start in range(0, self.length, self._step):
            part = total[start : start + self._step]
            stream.update_into(self._zeros[: part.nbytes], self._stream)
            words = self._words[: len(part)]
            if subtract:
                np.subtract(part, words, out=part)
            else:
                np.add(part, words, out=part)


@dataclass(frozen=True)
class SignedMessage(ABC):
    """A message signed by its author's long-term Ed25519 key."""

    signature: bytes = field(default=bytes(SIGNATURE), kw_only=True)
    kind: ClassVar[int]
    domain: ClassVar[bytes]
    """Prefix of the signed text; it differs between protocols."""

    @property
    def text(self) -> bytes:
        """The signed text, which differs for every message, session and protocol."""
        hashed = hashlib.sha256(bytes([self.kind]))
        for part in self.covered():
            hashed.update(part)
        return self.domain + hashed.digest()

    @abstractmethod
    def covered(self) -> tuple[Bytes, ...]:
        """Returns, in order, the parts that are signed; the message's kind precedes them."""

    def signed(self, key: Ed25519PrivateKey) -> Self:
        """Returns the same message, signed by the holder of `key`."""
        return replace(self, signature=key.sign(self.text))

    def signed_by(self, public: bytes) -> bool:
        """Whether the holder of the public key `public` signed this message."""
        return verified(public, self.signature, self.text)
