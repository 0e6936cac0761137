"""The messages of a committee's sum: each is a frozen value with one validated byte form.

A client sends one `Contribution` for a `Call`. Members of the committee then exchange
`MemberInbox`, `Ballot`, `Ballots` and `Disclosure` with the server. Every message begins with the
hash of the call. This hash binds the run, its key book and settings, round, exchange, model and
roster. Numbers are little-endian. Bytes that are not exactly one message raise `BadMessage`.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from privfed.secure.committee.dealing import DIGEST, Dealt
from privfed.secure.frames import COUNT, NUMBER, BadMessage, Reader, records, sized
from privfed.secure.masked.messages.message import (
    ClientMessage,
    Forms,
    WireMessage,
    read_sender,
)
from privfed.secure.primitives import KEY, SEAL, SIGNATURE, SignedMessage, verified

SEALED = KEY + SEAL
"""Bytes of a member's sealed key."""
_SEALED, _ROOT = struct.Struct(f"{SEALED}s"), struct.Struct(f"{DIGEST}s")
_LETTER, _VOTE = struct.Struct(f"<Q{SEALED}s"), struct.Struct(f"<Q{SIGNATURE}s")
_DOMAIN = b"privfed committee"


@dataclass(frozen=True)
class Call(WireMessage):
    """Message of the server to the whole cohort: the sum's round, model and format, and its roster.

    `agreement` is the hash of the settings and of the run's key book.
    """

    round: int
    exchange: int
    model_hash: bytes
    bits: int
    length: int
    agreement: bytes
    clients: tuple[int, ...]
    kind: ClassVar[int] = 1

    @property
    def context(self) -> bytes:
        """The hash of the roster and of all other fields, which later messages contain."""
        return hashlib.sha256(b"privfed call" + self.body()).digest()

    def body(self) -> bytes:
        numbers = (self.round, self.exchange, self.bits, self.length)
        start = self.model_hash + self.agreement + b"".join(map(NUMBER.pack, numbers))
        return start + records([NUMBER.pack(client) for client in self.clients])

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Call:
        model_hash, agreement = data.take(KEY), data.take(KEY)
        round, exchange, bits, length = (data.number() for _ in range(4))
        clients = _numbers(data)
        call = cls(round, exchange, model_hash, bits, length, agreement, clients)
        if call.context != context:
            raise BadMessage("wrong session", "the call's session is not the hash of the call")
        return call


@dataclass(frozen=True)
class SignedDealing(SignedMessage):
    """The dealing of a client's `Contribution`, with that message's signature.

    `rest` is the hash `[32]` of the other signed parts: the sealed keys and the masked row.
    """

    context: bytes
    sender: int
    dealt: Dealt
    rest: bytes
    kind: ClassVar[int] = 2
    domain: ClassVar[bytes] = _DOMAIN

    def covered(self) -> tuple[bytes, ...]:
        return self.context, NUMBER.pack(self.sender), _dealt_bytes(self.dealt), self.rest

    def body(self) -> bytes:
        """Returns the message's bytes after the context."""
        return b"".join((self.signature, *self.covered()[1:]))

    @classmethod
    def read(cls, context: bytes, data: Reader) -> SignedDealing:
        """Parses a dealing from its body. Raises `BadMessage` if it is malformed."""
        signature, sender = read_sender(data)
        dealt = Dealt(*(data.sized() for _ in range(3)))
        return cls(context, sender, dealt, data.take(KEY), signature=signature)


def _dealt_bytes(dealt: Dealt) -> bytes:
    return b"".join(map(sized, (dealt.roots, dealt.corrections, dealt.secrets)))


@dataclass(frozen=True)
class Contribution(ClientMessage):
    """A client's message in answer to a call: its masked row, and shares of its masks' seeds.

    The signature covers the dealing and a hash of the rest, so that the dealing can be verified
    without the row. `sealed` contains, for each member of the committee in order, the encrypted key
    from which the member draws its shares. `dealt` is the part of the dealing that the server
    reads.
    """

    sealed: tuple[bytes, ...]
    dealt: Dealt
    words: bytes
    kind: ClassVar[int] = 2
    domain: ClassVar[bytes] = _DOMAIN

    @cached_property
    def dealing(self) -> SignedDealing:
        """The signed dealing, without the row."""
        rest = hashlib.sha256(records(list(self.sealed)))
        rest.update(self.words)
        agreed, signature = self.context, self.signature
        return SignedDealing(agreed, self.sender, self.dealt, rest.digest(), signature=signature)

    def covered(self) -> tuple[bytes, ...]:
        return self.dealing.covered()

    def content(self) -> bytes:
        return records(list(self.sealed)) + _dealt_bytes(self.dealt) + self.words

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Contribution:
        signature, sender = read_sender(data)
        sealed = tuple(text for (text,) in data.records(_SEALED))
        dealt = Dealt(*(data.sized() for _ in range(3)))
        return cls(context, sender, sealed, dealt, data.rest(), signature=signature)


@dataclass(frozen=True)
class MemberInbox(WireMessage):
    """Message of the server to a member: each survivor, in order, with its sealed key.

    The survivor encrypted this key for the member, which draws its shares from it.
    """

    context: bytes
    sealed: tuple[tuple[int, bytes], ...]
    kind: ClassVar[int] = 3

    @property
    def survivors(self) -> tuple[int, ...]:
        """The clients whose rows are in the sum."""
        return tuple(client for client, _ in self.sealed)

    def body(self) -> bytes:
        return records([NUMBER.pack(client) + text for client, text in self.sealed])

    @classmethod
    def read(cls, context: bytes, data: Reader) -> MemberInbox:
        return cls(context, tuple((client, text) for client, text in data.records(_LETTER)))


def vote_text(agreed: bytes, survivors: tuple[int, ...]) -> bytes:
    """Returns the text that voters for `survivors` sign under the roster of hash `agreed`."""
    return b"privfed committee vote" + agreed + b"".join(map(NUMBER.pack, survivors))


@dataclass(frozen=True)
class MemberVote:
    """A member's signature on the survivors; an honest member signs only one set in a sum."""

    member: int
    signature: bytes
    size: ClassVar[int] = NUMBER.size + SIGNATURE

    def cast_by(self, public: bytes, text: bytes) -> bool:
        """Whether the holder of `public` signed `text`, the result of `vote_text`."""
        return verified(public, self.signature, text)

    def packed(self) -> bytes:
        """Returns the vote's bytes, of constant size."""
        return NUMBER.pack(self.member) + self.signature


@dataclass(frozen=True)
class Ballot(ClientMessage):
    """Message of a member to the server: its vote, and a hash tree's root for each survivor.

    The tree covers the numbers that the member drew for this survivor's secrets. The root is zeros
    if the member could not decrypt the survivor's key.
    """

    vote: bytes
    roots: tuple[bytes, ...]
    kind: ClassVar[int] = 4
    domain: ClassVar[bytes] = _DOMAIN

    def content(self) -> bytes:
        return self.vote + records(list(self.roots))

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Ballot:
        (signature, sender), vote = read_sender(data), data.take(SIGNATURE)
        roots = tuple(root for (root,) in data.records(_ROOT))
        return cls(context, sender, vote, roots, signature=signature)


@dataclass(frozen=True)
class Ballots(WireMessage):
    """Message of the server to a member: votes of `threshold` members for the same survivors."""

    context: bytes
    votes: tuple[MemberVote, ...]
    kind: ClassVar[int] = 5

    def body(self) -> bytes:
        return records([vote.packed() for vote in self.votes])

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Ballots:
        return cls(context, tuple(MemberVote(*fields) for fields in data.records(_VOTE)))


@dataclass(frozen=True)
class Disclosure(ClientMessage):
    """Message of a member to the server: the numbers that open survivors' masks.

    `shares` has a pair for each survivor whose key the member could decrypt: the survivor, and a
    text. The text contains the member's numbers for the survivor's fresh seed and for the seeds
    that the survivor shares with dropouts. A proof follows that these numbers are in the hash tree
    whose root is in the member's ballot.
    """

    shares: tuple[tuple[int, bytes], ...]
    kind: ClassVar[int] = 6
    domain: ClassVar[bytes] = _DOMAIN

    def content(self) -> bytes:
        texts = [NUMBER.pack(client) + sized(text) for client, text in self.shares]
        return COUNT.pack(len(texts)) + b"".join(texts)

    @classmethod
    def read(cls, context: bytes, data: Reader) -> Disclosure:
        (signature, sender), count = read_sender(data), data.count()
        shares = tuple((data.number(), data.sized()) for _ in range(count))
        return cls(context, sender, shares, signature=signature)


FromServer = Call | MemberInbox | Ballots
FromClient = Contribution | Ballot | Disclosure
Message = FromServer | FromClient

_FORMS: Forms[Message] = Forms(
    b"PC", (Call, Contribution, MemberInbox, Ballot, Ballots, Disclosure)
)


def message_bytes(message: Message) -> bytes:
    """Returns the byte form of `message`."""
    return _FORMS.encode(message)


def read_message(data: bytes) -> Message:
    """Parses a message. Raises `BadMessage` if it is malformed."""
    return _FORMS.decode(data)


def _numbers(data: Reader) -> tuple[int, ...]:
    return tuple(client for (client,) in data.records(NUMBER))
