"""What every message of a masked sum is, and what those that a client signs have besides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

from privfed.secure.frames import NUMBER, Reader
from privfed.secure.packing import Bytes
from privfed.secure.primitives import SIGNATURE
from privfed.secure.signed_message import SignedMessage


class WireMessage(ABC):
    """A frozen value with one byte form: format, kind, the session's context, and a body."""

    kind: ClassVar[int]

    @abstractmethod
    def body(self) -> bytes:
        """The bytes after the context."""

    @classmethod
    @abstractmethod
    def read(cls, context: bytes, data: Reader) -> Self:
        """The message with this body. Raises `BadMessage` where `data` is none of this kind."""


@dataclass(frozen=True)
class ClientMessage(WireMessage, SignedMessage):
    """A message that its sender signed: of all it says in this session."""

    context: bytes
    sender: int
    domain: ClassVar[bytes] = b"privfed message"

    @abstractmethod
    def content(self) -> Bytes:
        """What follows the sender."""

    def parts(self) -> tuple[Bytes, ...]:
        """The content, one part after another."""
        return (self.content(),)

    def covered(self) -> tuple[Bytes, ...]:
        return self.context, NUMBER.pack(self.sender), *self.parts()

    def body(self) -> bytes:
        return b"".join((self.signature, NUMBER.pack(self.sender), *self.parts()))


def read_sender(data: Reader) -> tuple[bytes, int]:
    """The signature and the sender with which a client's signed body begins."""
    return data.take(SIGNATURE), data.number()
