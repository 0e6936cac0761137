"""What the signed messages of all secure sums have in common."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privfed.secure.packing import Bytes
from privfed.secure.primitives import SIGNATURE, verified


@dataclass(frozen=True)
class SignedMessage(ABC):
    """A message that its author signed with a long-term Ed25519 key."""

    signature: bytes = field(default=bytes(SIGNATURE), kw_only=True)
    kind: ClassVar[int]
    domain: ClassVar[bytes]
    """How a signed text begins: no two protocols begin theirs alike."""

    @property
    def text(self) -> bytes:
        """What the signature is on: a text that no other message, session or protocol has."""
        hashed = hashlib.sha256(bytes([self.kind]))
        for part in self.covered():
            hashed.update(part)
        return self.domain + hashed.digest()

    @abstractmethod
    def covered(self) -> tuple[Bytes, ...]:
        """All that the signature is on, beside the kind, one part after another."""

    def signed(self, key: Ed25519PrivateKey) -> Self:
        """The same message, signed by the holder of `key`."""
        return replace(self, signature=key.sign(self.text))

    def signed_by(self, public: bytes) -> bool:
        """Whether the holder of the public key `public` signed this message."""
        return verified(public, self.signature, self.text)
