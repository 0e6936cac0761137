"""The messages of masked sums: frozen values with one byte form each, which is checked whole.

Every message begins with four bytes of format and kind, and the 32-byte context of its session: the
hash of the invitation, which binds round, exchange, model, and the hash of all settings that both
sides have to share. A replayed invitation has the same one. The roster's hash binds besides who
takes part, and a nonce of each of them: no client ever agrees to the same roster twice, and votes
and sealed shares are bound to it. Numbers are little-endian. Bytes that are no message,
or more or less than one, raise `BadMessage`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from privfed.secure.agreement import PROTOCOL
from privfed.secure.masked.shamir import LENGTH, PRIME
from privfed.secure.primitives import KEY, SEAL, SIGNATURE
from privfed.secure.summation import Aborted

_FORMAT = b"PS%d" % PROTOCOL
_PLACE = struct.Struct("<Q")
_COUNT = struct.Struct("<I")


def sealed_size(layers: int) -> int:
    """Bytes of sealed shares of two secrets and `layers` more, with whom they are from and to."""
    return (2 + layers) * LENGTH + 2 * _PLACE.size + SEAL


class BadMessage(Aborted):
    """A message that is refused, by the name of its fault."""

    def __init__(self, fault: str, said: str) -> None:
        super().__init__(f"{fault}: {said}")
        self.fault = fault


class Reader:
    """Takes bytes apart; every byte has to be used."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise BadMessage("wrong length", "the message ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self) -> int:
        return int(_PLACE.unpack(self.take(_PLACE.size))[0])

    def small(self) -> int:
        return int(_COUNT.unpack(self.take(_COUNT.size))[0])

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)

    def each(self, size: int) -> Iterator[Reader]:
        """Records of `size` bytes, as many as the message says."""
        count = self.small()
        if count * size > len(self._data) - self._at:
            raise BadMessage("wrong length", "the message ends too early")
        for _ in range(count):
            yield Reader(self.take(size))

    def end(self) -> None:
        if self._at != len(self._data):
            raise BadMessage("wrong length", "the message goes on after its end")


def signed_text(kind: int, context: bytes, body: bytes) -> bytes:
    """What a client signs of its messages: a hash of all of it."""
    return b"privfed message" + hashlib.sha256(bytes([kind]) + context + body).digest()


def _number(value: int) -> bytes:
    return _PLACE.pack(value)


def _list(records: list[bytes]) -> bytes:
    return _COUNT.pack(len(records)) + b"".join(records)


@dataclass(frozen=True)
class Invitation:
    """Server to all: what is to be summed. Its hash is the session's context."""

    session: bytes
    round: int
    exchange: int
    model_hash: bytes
    bits: int
    length: int
    agreement: bytes
    kind: ClassVar[int] = 1

    @property
    def context(self) -> bytes:
        return hashlib.sha256(b"privfed invitation" + self.body()).digest()

    def body(self) -> bytes:
        numbers = (self.round, self.exchange, self.bits, self.length)
        start = self.session + self.model_hash + self.agreement
        return start + b"".join(map(_number, numbers))

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Invitation:
        session, model_hash, agreement = (data.take(KEY) for _ in range(3))
        round, exchange, bits, length = (data.number() for _ in range(4))
        found = cls(session, round, exchange, model_hash, bits, length, agreement)
        if found.context != context:
            raise BadMessage("wrong session", "an invitation that is not of its own context")
        return found


@dataclass(frozen=True)
class Advertise:
    """Client to server, and on to its neighbours: a nonce and its two public keys, signed."""

    context: bytes
    sender: int
    nonce: bytes
    channel: bytes
    mask: bytes
    signature: bytes = bytes(SIGNATURE)
    kind: ClassVar[int] = 2
    size: ClassVar[int] = _PLACE.size + 3 * KEY + SIGNATURE

    @property
    def text(self) -> bytes:
        """What the signature is on."""
        return b"privfed keys" + self.context + self._keys()

    def _keys(self) -> bytes:
        return _number(self.sender) + self.nonce + self.channel + self.mask

    def body(self) -> bytes:
        return self._keys() + self.signature

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Advertise:
        sender, (nonce, channel, mask) = data.number(), (data.take(KEY) for _ in range(3))
        return cls(context, sender, nonce, channel, mask, data.take(SIGNATURE))


@dataclass(frozen=True)
class Roster:
    """Server to one client: who takes part, the graph that was drawn, and its neighbours' keys.

    Of each of the `clients` one of the `nonces`, in order.
    """

    context: bytes
    clients: tuple[int, ...]
    nonces: tuple[bytes, ...]
    degree: int
    threshold: int
    seed: bytes
    keys: tuple[Advertise, ...]
    kind: ClassVar[int] = 3

    def agreed(self) -> bytes:
        """The hash of what everybody's roster has to say alike."""
        return hashlib.sha256(b"privfed roster" + self.context + self._alike()).digest()

    def _alike(self) -> bytes:
        pairs = zip(self.clients, self.nonces, strict=True)
        members = _list([_number(client) + nonce for client, nonce in pairs])
        return members + _number(self.degree) + _number(self.threshold) + self.seed

    def body(self) -> bytes:
        return self._alike() + _list([keys.body() for keys in self.keys])

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Roster:
        members = [(one.number(), one.take(KEY)) for one in data.each(_PLACE.size + KEY)]
        clients, nonces = tuple(who for who, _ in members), tuple(nonce for _, nonce in members)
        degree, threshold, seed = data.number(), data.number(), data.take(KEY)
        keys = tuple(Advertise.read(context, one) for one in data.each(Advertise.size))
        return cls(context, clients, nonces, degree, threshold, seed, keys)


@dataclass(frozen=True)
class Shares:
    """Client to server: sealed shares of its two secrets, one pair for each neighbour.

    By `commitment`, a hash of the self-mask's seed, and `last`, one of the seed of the last layer
    of noise (if there are any), the server knows wrong ones.
    """

    context: bytes
    sender: int
    commitment: bytes
    last: bytes
    sealed: tuple[tuple[int, bytes], ...]
    signature: bytes = bytes(SIGNATURE)
    kind: ClassVar[int] = 4

    @property
    def text(self) -> bytes:
        """What the signature is on."""
        said = _number(self.sender) + self.commitment + self.last + _sealed(self.sealed)
        return signed_text(self.kind, self.context, said)

    def body(self) -> bytes:
        start = self.signature + _number(self.sender)
        return start + self.commitment + self.last + _sealed(self.sealed)

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Shares:
        signature, sender = data.take(SIGNATURE), data.number()
        secrets = data.take(KEY), data.take(KEY)
        return cls(context, sender, *secrets, _unsealed(data), signature)


@dataclass(frozen=True)
class Inbox:
    """Server to one client: the sealed shares that its neighbours sent it."""

    context: bytes
    sealed: tuple[tuple[int, bytes], ...]
    kind: ClassVar[int] = 5

    def body(self) -> bytes:
        return _sealed(self.sealed)

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Inbox:
        return cls(context, _unsealed(data))


def _sealed(pairs: tuple[tuple[int, bytes], ...]) -> bytes:
    size = max((len(text) for _, text in pairs), default=0)
    return _COUNT.pack(size) + _list([_number(client) + text for client, text in pairs])


def _unsealed(data: Reader) -> tuple[tuple[int, bytes], ...]:
    size = data.small()
    return tuple((one.number(), one.rest()) for one in data.each(_PLACE.size + size))


@dataclass(frozen=True)
class Masked:
    """Client to server: its masked row, packed."""

    context: bytes
    sender: int
    words: bytes
    signature: bytes = bytes(SIGNATURE)
    kind: ClassVar[int] = 6

    @property
    def text(self) -> bytes:
        """What the signature is on."""
        return signed_text(self.kind, self.context, _number(self.sender) + self.words)

    def body(self) -> bytes:
        return self.signature + _number(self.sender) + self.words

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Masked:
        signature, sender = data.take(SIGNATURE), data.number()
        return cls(context, sender, data.rest(), signature)


@dataclass(frozen=True)
class Survivors:
    """Server to all who sent: whose rows are in the sum, in order."""

    context: bytes
    clients: tuple[int, ...]
    kind: ClassVar[int] = 7

    def signed(self, agreed: bytes) -> bytes:
        """What those who agree sign."""
        return b"privfed survivors" + agreed + b"".join(map(_number, self.clients))

    def body(self) -> bytes:
        return _list([_number(client) for client in self.clients])

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Survivors:
        return cls(context, tuple(one.number() for one in data.each(_PLACE.size)))


@dataclass(frozen=True)
class Vote:
    """Client to server: its one signature on the survivors."""

    context: bytes
    sender: int
    signature: bytes
    kind: ClassVar[int] = 8
    size: ClassVar[int] = _PLACE.size + SIGNATURE

    def body(self) -> bytes:
        return _number(self.sender) + self.signature

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Vote:
        return cls(context, data.number(), data.take(SIGNATURE))


@dataclass(frozen=True)
class Votes:
    """Server to one client: signatures of those who hold its shares, on the same survivors."""

    context: bytes
    votes: tuple[Vote, ...]
    kind: ClassVar[int] = 9

    def body(self) -> bytes:
        return _list([vote.body() for vote in self.votes])

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Votes:
        return cls(context, tuple(Vote.read(context, one) for one in data.each(Vote.size)))


@dataclass(frozen=True)
class Unmask:
    """Client to server: per neighbour one share, of its seed if it survived, else of its key.

    And of the seed of each survivor's first layer of noise that is too much, if there is any: of
    layer `gone` + 1, where so many of the roster are missing by this client's own count.
    """

    context: bytes
    sender: int
    seeds: tuple[tuple[int, int], ...]
    keys: tuple[tuple[int, int], ...]
    gone: int = 0
    layers: tuple[tuple[int, int], ...] = ()
    signature: bytes = bytes(SIGNATURE)
    kind: ClassVar[int] = 10

    @property
    def text(self) -> bytes:
        """What the signature is on."""
        return signed_text(self.kind, self.context, self._said())

    def _said(self) -> bytes:
        lists = (self.seeds, self.keys, self.layers)
        return _number(self.sender) + _number(self.gone) + b"".join(map(_values, lists))

    def body(self) -> bytes:
        return self.signature + self._said()

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Unmask:
        signature, sender, gone = data.take(SIGNATURE), data.number(), data.number()
        seeds, keys, layers = _valued(data), _valued(data), _valued(data)
        return cls(context, sender, seeds, keys, gone, layers, signature)


def _values(pairs: tuple[tuple[int, int], ...]) -> bytes:
    return _list([_number(client) + value.to_bytes(LENGTH, "little") for client, value in pairs])


def _valued(data: Reader) -> tuple[tuple[int, int], ...]:
    found = data.each(_PLACE.size + LENGTH)
    return tuple((one.number(), int.from_bytes(one.rest(), "little")) for one in found)


FromServer = Invitation | Roster | Inbox | Survivors | Votes
FromClient = Advertise | Shares | Masked | Vote | Unmask
Message = FromServer | FromClient

_KINDS: dict[int, Callable[[bytes, Reader], Message]] = {
    kind.kind: kind.read
    for kind in (
        *(Invitation, Advertise, Roster, Shares, Inbox),
        *(Masked, Survivors, Vote, Votes, Unmask),
    )
}


def encode(message: Message) -> bytes:
    return _FORMAT + bytes([message.kind]) + message.context + message.body()


def decode(data: bytes) -> Message:
    """The message that these bytes are. Raises `BadMessage`."""
    reader = Reader(data)
    if reader.take(len(_FORMAT)) != _FORMAT:
        raise BadMessage("wrong format", "bytes that are no message of this version")
    read = _KINDS.get(reader.take(1)[0])
    if read is None:
        raise BadMessage("wrong type", "a message of no known kind")
    message = read(reader.take(KEY), reader)
    reader.end()
    return message


def share_text(sender: int, receiver: int, shares: tuple[int, ...]) -> bytes:
    """What is sealed for `receiver`: shares of the sender's seed, key, and layers' seeds."""
    values = b"".join(value.to_bytes(LENGTH, "little") for value in shares)
    return _number(sender) + _number(receiver) + values


def read_shares(text: bytes, sender: int, receiver: int, count: int) -> tuple[int, ...] | None:
    """The `count` shares; None where it is not from `sender` to `receiver`, or none can be."""
    if len(text) != 2 * _PLACE.size + count * LENGTH:
        return None
    data = Reader(text)
    if (data.number(), data.number()) != (sender, receiver):
        return None
    shares = tuple(int.from_bytes(data.take(LENGTH), "little") for _ in range(count))
    return shares if max(shares) < PRIME else None


def between(agreed: bytes, sender: int, receiver: int) -> bytes:
    """What a sealed text is bound to: the roster under which it was dealt, and whom it is for."""
    return agreed + _number(sender) + _number(receiver)
