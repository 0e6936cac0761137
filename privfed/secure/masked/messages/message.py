"""What every message of a masked sum is, and what those that a client signs have besides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from privfed.secure.frames import NUMBER, BadMessage, Reader
from privfed.secure.identities import PROTOCOL
from privfed.secure.packing import Bytes
from privfed.secure.primitives import KEY, SIGNATURE, SignedMessage


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


class Framed(Protocol):
    """What `Forms` ask of a message: a `WireMessage`, whose context is a field or follows."""

    kind: ClassVar[int]

    @property
    def context(self) -> bytes:
        """What all messages of its session name."""
        ...

    def body(self) -> bytes:
        """The bytes after the context."""
        ...

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Self:
        """The message with this body. Raises `BadMessage`."""
        ...


M = TypeVar("M", bound=Framed)


class Forms(Generic[M]):
    """The byte forms of a protocol's messages: its `letters` and version, and their `kinds`."""

    def __init__(self, letters: bytes, kinds: tuple[type[M], ...]) -> None:
        self._format = letters + b"%d" % PROTOCOL
        self._kinds = {kind.kind: kind for kind in kinds}

    def encode(self, message: M) -> bytes:
        """The byte form of `message`."""
        head = (self._format, bytes([message.kind]), message.context)
        return b"".join((*head, message.body()))

    def decode(self, data: bytes) -> M:
        """The message that these bytes are. Raises `BadMessage`."""
        reader = Reader(data)
        if reader.take(len(self._format)) != self._format:
            raise BadMessage("wrong format", "bytes that are no message of this version")
        kind = self._kinds.get(reader.take(1)[0])
        if kind is None:
            raise BadMessage("wrong type", "a message of no known kind")
        message = kind.read(reader.take(KEY), reader)
        reader.end()
        return message


def read_framed(kind: type[M], context: bytes, data: Reader) -> M:
    """The message of this kind whose body comes next, its length first. Raises `BadMessage`."""
    inner = Reader(data.sized())
    message = kind.read(context, inner)
    inner.end()
    return message


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
