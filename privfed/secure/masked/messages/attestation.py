"""Whom a client masked with, in its own words: what neighbours ask for on a random graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privfed.secure.frames import COUNT, NUMBER, Reader, records
from privfed.secure.primitives import SIGNATURE, verified


@dataclass(frozen=True)
class Attestation:
    """A client's signed word that it masked its row with all its neighbours but those `left_out`.

    It goes from the client to the server with its row, and on to its neighbours with survivors.
    """

    sender: int
    left_out: tuple[int, ...]
    signature: bytes
    size: ClassVar[int] = NUMBER.size + SIGNATURE + COUNT.size
    """Its bytes where nobody is left out."""

    @staticmethod
    def text(agreed: bytes, sender: int, left_out: tuple[int, ...]) -> bytes:
        """What `sender` signs under the roster with the hash `agreed`."""
        return b"privfed masked with" + agreed + NUMBER.pack(sender) + _packed(left_out)

    def given_by(self, public: bytes, agreed: bytes) -> bool:
        """Whether the holder of `public` signed it under the roster with the hash `agreed`."""
        return verified(public, self.signature, self.text(agreed, self.sender, self.left_out))

    def body(self) -> bytes:
        """Its bytes, which say themselves how many they are."""
        return NUMBER.pack(self.sender) + self.signature + _packed(self.left_out)

    @classmethod
    def read(cls, data: Reader) -> Attestation:
        """The attestation that comes next. Raises `BadMessage`."""
        sender, signature = data.number(), data.take(SIGNATURE)
        left_out = tuple(client for (client,) in data.records(NUMBER))
        return cls(sender, left_out, signature)


def _packed(clients: tuple[int, ...]) -> bytes:
    return records([NUMBER.pack(client) for client in clients])
