"""Envelopes of messages between a coordinator and its sites: their context and signature."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privfed.deploy.files.federation_file import FederationFile
from privfed.deploy.files.keys import PublicKey, SiteKey, UnknownKey
from privfed.secure.frames import BadMessage, Reader, sized
from privfed.secure.primitives import KEY, SIGNATURE, random_key, verified

_FORMAT = b"PF1"
"""The version of these messages."""
NO_RUN = bytes(KEY)
"""Placeholder for the hash of a run in messages that belong to no run."""


class Kind(IntEnum):
    """Kinds of a coordinator's messages."""

    HELLO = 0
    """Asks which site answers at an address; contains fresh random bytes and belongs to no run."""
    QUESTION = 1
    """The model of an exchange, new lines of the ledger, and the invitation to the sum."""
    STEP = 2
    """The next message of the sum's protocol."""
    DECLARATION = 3
    """The declaration of a run, before any question."""
    ANSWERED = 4
    """Asks before a declaration whether the site's receipts contain the last exchange that it
    answered, of any run."""


class Reply(IntEnum):
    """Kinds of a site's replies; only `ANSWERED` has data, and only `DECLINED` a fixed word."""

    ANSWERED = 0
    DECLINED = 1
    """The site declines; a fixed word follows (`privfed.deploy.site.policy.Code`)."""
    UNSIGNED = 2
    """The coordinator did not sign the message, or the message belongs to another federation."""
    MALFORMED = 3
    """The message is invalid or out of order, its run is not declared, or its sum has ended."""
    FAILED = 4
    """The site failed to compute an answer; its own log states why."""


@dataclass(frozen=True)
class Envelope:
    """A coordinator's signed message.

    Attributes:
      federation: hash of the federation file, 32 bytes.
      run: hash that identifies the run, 32 bytes, or `NO_RUN`.
      kind: kind of the message.
      body: content of the message.
      signature: Ed25519 signature on `text`, 64 bytes; zero before `signed`.
    """

    federation: bytes
    run: bytes
    kind: Kind
    body: bytes
    signature: bytes = bytes(SIGNATURE)

    @property
    def text(self) -> bytes:
        """The bytes that the coordinator signs.

        These are a fixed prefix, federation, run, kind, and the SHA-256 of `body`.
        """
        start = b"privfed envelope" + self.federation + self.run + bytes([self.kind])
        return start + hashlib.sha256(self.body).digest()

    def signed(self, key: Ed25519PrivateKey) -> Self:
        """Returns the same message, signed with `key`."""
        return replace(self, signature=key.sign(self.text))

    def signed_by(self, public: bytes) -> bool:
        """Whether `signature` is a valid signature of the public key `public` on this message."""
        return verified(public, self.signature, self.text)

    def encode(self) -> bytes:
        """Returns the bytes from which `decode` restores this message."""
        start = _FORMAT + self.federation + self.run + bytes([self.kind])
        return start + sized(self.body) + self.signature

    @classmethod
    def decode(cls, data: bytes) -> Envelope:
        """Parses an envelope. Raises `BadMessage` if it is malformed; checks no signature."""
        reader = Reader(data)
        if reader.take(len(_FORMAT)) != _FORMAT:
            raise BadMessage("wrong format", "the bytes are not a message of this version")
        federation, run, kind = reader.take(KEY), reader.take(KEY), reader.take(1)[0]
        if kind not in tuple(Kind):
            raise BadMessage("wrong type", "the message is of an unknown kind")
        body, signature = reader.sized(), reader.take(SIGNATURE)
        reader.end()
        return cls(federation, run, Kind(kind), body, signature)


def answered(reply: Reply, body: bytes = b"") -> bytes:
    """Returns the bytes of a site's answer: the kind of reply and its body."""
    return bytes([reply]) + body


def read_answer(data: bytes) -> tuple[Reply, bytes]:
    """Parses a site's answer into its kind and body. Raises `BadMessage` if it is malformed."""
    if not data or data[0] not in tuple(Reply):
        raise BadMessage("wrong format", "the bytes are not a site's answer")
    return Reply(data[0]), data[1:]


@dataclass(frozen=True)
class Greeter:
    """Identifies the site of the `federation` that answers at an address.

    The coordinator's `key` signs greetings, and the site's key signs answers. A third party that
    forwards both appears as one more address of that site. It can then lose the site's messages,
    but so can any carrier.
    """

    federation: FederationFile
    key: Ed25519PrivateKey

    def hello(self) -> bytes:
        """Returns the bytes of a new greeting: a signed message with fresh random bytes."""
        federation = bytes.fromhex(self.federation.digest())
        envelope = Envelope(federation, NO_RUN, Kind.HELLO, bytes(random_key()))
        return envelope.signed(self.key).encode()

    def site_of(self, hello: bytes, answer: bytes) -> int | None:
        """Returns the number of the site that signed `answer` to the greeting `hello`.

        Returns None if `answer` is malformed, a refusal, or not signed by a site of the federation.
        """
        try:
            reply, body = read_answer(answer)
            reader = Reader(body)
            public, signature = PublicKey(reader.take(KEY)), reader.take(SIGNATURE)
            reader.end()
        except (BadMessage, UnknownKey):
            return None
        name = self.federation.name_of(public)
        if reply != Reply.ANSWERED or name is None or not public.verifies(signature, _text(hello)):
            return None
        return self.federation.order.index(name)


def greeting(key: SiteKey, hello: bytes) -> bytes:
    """Returns the body of a site's answer to the greeting `hello`: public key and signature."""
    return key.public.raw + key.sign(_text(hello))


def _text(hello: bytes) -> bytes:
    """Returns the text that a site signs to answer the greeting `hello`."""
    return b"privfed site" + hashlib.sha256(hello).digest()
