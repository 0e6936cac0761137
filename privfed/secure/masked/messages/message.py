"""Base classes of the messages of masked sums, including those signed by clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from privfed.secure.agreement import PROTOCOL
from privfed.secure.frames import NUMBER, BadMessage, Reader
from privfed.secure.packing import Bytes
from privfed.secure.primitives import KEY, SIGNATURE, SignedMessage


class WireMessage(ABC):
    """A frozen value with a unique encoding in bytes.

    The encoding is the format, the number of the message's kind, the session's context, and a body.
    """

    kind: ClassVar[int]

    @abstractmethod
    def body(self) -> bytes:
        """Returns the bytes after the context."""

    @classmethod
    @abstractmethod
    def read(cls, context: bytes, data: Reader) -> Self:
        """Parses a message from its body. Raises `BadMessage` if `data` is not of this kind."""


class Framed(Protocol):
    """Interface of messages that `Forms` encodes; `context` may be a field or a property."""

    kind: ClassVar[int]

    @property
    def context(self) -> bytes:
        """The context that all messages of a session share."""

    def body(self) -> bytes:
        """Returns the bytes after the context."""

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Self:
        """Parses a message from its body. Raises `BadMessage` if it is malformed."""


M = TypeVar("M", bound=Framed)


class Forms(Generic[M]):
    """Encodes and decodes a protocol's `kinds` of messages.

    Their bytes begin with `letters` and the protocol's version.
    """

    def __init__(self, letters: bytes, kinds: tuple[type[M], ...]) -> None:
        self._format = letters + b"%d" % PROTOCOL
        self._kinds = {kind.kind: kind for kind in kinds}

    def encode(self, message: M) -> bytes:
        """Returns the byte form of `message`."""
        head = (self._format, bytes([message.kind]), message.context)
        return b"".join((*head, message.body()))

    def decode(self, data: bytes) -> M:
        """Parses a message. Raises `BadMessage` if it is malformed."""
        reader = Reader(data)
        if reader.take(len(self._format)) != self._format:
            raise BadMessage("wrong format", "the bytes are no message of this version")
        kind = self._kinds.get(reader.take(1)[0])
        if kind is None:
            raise BadMessage("wrong type", "the message is of an unknown kind")
        message = kind.read(reader.take(KEY), reader)
        reader.end()
        return message


def read_framed(kind: type[M], context: bytes, data: Reader) -> M:
    """Parses the next message, which is of `kind` and prefixed by its length.

    Raises `BadMessage` if it is malformed.
    """
    inner = Reader(data.sized())
    message = kind.read(context, inner)
    inner.end()
    return message


@dataclass(frozen=True)
class ClientMessage(WireMessage, SignedMessage):
    """A message of a client, which signs all of its content and the session's context."""

    context: bytes
    sender: int
    domain: ClassVar[bytes] = b"privfed message"

    @abstractmethod
    def content(self) -> Bytes:
        """Returns the bytes that follow the sender's number."""

    def parts(self) -> tuple[Bytes, ...]:
        """Returns the content as consecutive parts, so that long ones need not be copied."""
        return (self.content(),)

    def covered(self) -> tuple[Bytes, ...]:
        return self.context, NUMBER.pack(self.sender), *self.parts()

    def body(self) -> bytes:
        return b"".join((self.signature, NUMBER.pack(self.sender), *self.parts()))


def read_sender(data: Reader) -> tuple[bytes, int]:
    """Returns the signature and the sender with which a client's signed body begins."""
    return data.take(SIGNATURE), data.number()
