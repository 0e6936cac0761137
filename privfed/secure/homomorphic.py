"""Sums under homomorphic encryption: a server adds ciphertexts that it cannot read.

Three parties. A *key holder*, which is not the server (one of the hospitals, or all clients with
one key), makes a fresh key pair for each session: a lost key opens one sum, and no errors can be
provoked and compared under one key. It takes 4 ms, and 124 kB to each client. *Clients* encrypt
their encoded rows. The *server* adds each message to one encrypted sum as it arrives and hands the
total to the key holder, who decrypts it, once.

What that protects. The server sees ciphertexts and who sent them. The key holder sees the exact
sum; it rounds, and adds central noise, before anything else leaves it, and so is trusted with
that. **The key holder and the server together read every row.** So does a server that gives the
key holder one client's message as the total, or clients a key of its own: it is taken to follow
the protocol, and the opening message has to reach clients from the key holder unchanged (its hash
is in every message). Nothing is flooded with noise: that a total tells its key holder nothing
beyond the sum is not proved. Messages are not signed; transport has to say who sent them.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import Field

from privfed.errors import Refused
from privfed.secure.codec import Codec, Whole
from privfed.secure.encoded import SecureProtocol
from privfed.secure.homomorphic_parameters import (
    CIPHERTEXT,
    SCHEMES,
    BfvScheme,
    CkksScheme,
    Scheme,
    public_half,
    read_public,
    tenseal,
)
from privfed.secure.limits import FEWEST, Limits
from privfed.secure.messages import BadMessage, Reader
from privfed.secure.summation import Aborted, Session

_FORMAT = b"PH1"
_HASH = 32
_NUMBER = struct.Struct("<Q")
_COUNT = struct.Struct("<I")
_HEADER = len(_FORMAT) + 1 + _HASH + _NUMBER.size + _COUNT.size


@dataclass(frozen=True)
class Opening:
    """Key holder to all: what is to be summed, and the key to encrypt it with.

    Its hash is the session's context; 32 fresh random bytes in `nonce` make it unlike any other.
    """

    scheme: bytes
    round: int
    exchange: int
    bits: int
    length: int
    model_hash: bytes
    nonce: bytes
    key: bytes
    kind: ClassVar[int] = 1

    def encode(self) -> bytes:
        numbers = (self.round, self.exchange, self.bits, self.length)
        texts = (self.scheme, self.model_hash, self.nonce, self.key)
        return _start(self.kind) + b"".join([*map(_NUMBER.pack, numbers), *map(_sized, texts)])

    @classmethod
    def decode(cls, data: bytes) -> Opening:
        """Raises `BadMessage`."""
        reader = _begun(data, cls.kind)
        round, exchange, bits, length = (reader.number() for _ in range(4))
        scheme, model_hash, nonce, key = (reader.take(reader.small()) for _ in range(4))
        reader.end()
        if scheme not in SCHEMES:
            raise BadMessage("wrong scheme", "an opening of no known scheme")
        return cls(scheme, round, exchange, bits, length, model_hash, nonce, key)

    @cached_property
    def context(self) -> bytes:
        return hashlib.sha256(self.encode()).digest()

    def described(self) -> Scheme:
        return SCHEMES[self.scheme](self.bits)


@dataclass(frozen=True)
class _Encrypted:
    """Ciphertexts of one session, one for each block of a row."""

    context: bytes
    number: int
    blocks: tuple[bytes, ...]
    kind: ClassVar[int]

    def encode(self) -> bytes:
        head = _start(self.kind) + self.context + _NUMBER.pack(self.number)
        return head + _COUNT.pack(len(self.blocks)) + b"".join(map(_sized, self.blocks))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises `BadMessage`."""
        reader = _begun(data, cls.kind)
        context, number = reader.take(_HASH), reader.number()
        blocks = tuple(reader.take(reader.small()) for _ in range(reader.small()))
        reader.end()
        return cls(context, number, blocks)

    def ciphertexts(self, opening: Opening, key: Any) -> list[Any]:
        """All of them, checked for the session of `opening`. Raises `BadMessage`."""
        if self.context != opening.context:
            raise BadMessage("wrong session", "a message of another one")
        scheme = opening.described()
        sizes = scheme.blocks(opening.length)
        if len(self.blocks) != len(sizes):
            raise BadMessage(
                "wrong length", f"{len(self.blocks)} ciphertexts; expected {len(sizes)}"
            )
        return [scheme.read(key, *one) for one in zip(self.blocks, sizes, strict=True)]


@dataclass(frozen=True)
class Row(_Encrypted):
    """Client to server. `number` is the sender."""

    kind: ClassVar[int] = 2


@dataclass(frozen=True)
class Total(_Encrypted):
    """Server to key holder. `number` is of how many rows."""

    kind: ClassVar[int] = 3


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


class KeyHolder:
    """Makes a session's keys and opens its total: the one party that has the secret key."""

    def __init__(self, session: Session, scheme: Scheme, codec: Codec, limits: Limits) -> None:
        self._scheme, self._codec, self._limits = scheme, codec, limits
        self._keys, self._done = scheme.keys(), False
        self._opening = Opening(
            scheme.name.encode(),
            session.round,
            session.exchange,
            scheme.bits,
            codec.length,
            session.model_hash,
            os.urandom(_HASH),
            public_half(self._keys),
        )

    @property
    def opening(self) -> bytes:
        """The message to the server and to all clients."""
        return self._opening.encode()

    def open(self, message: bytes) -> tuple[Whole, int]:
        """The exact sum `[length]` and of how many rows, for one total only. Raises `Aborted`.

        A second total would tell the difference of the two, which may be one row.
        """
        total = Total.decode(message)
        if not _least(self._limits) <= total.number <= self._limits.capacity:
            raise BadMessage("wrong number", "a total of too few rows, or beyond secure.capacity")
        ciphertexts = total.ciphertexts(self._opening, self._keys)
        if self._done:
            raise BadMessage("sent twice", "a second total in one session")
        self._done = True
        try:
            whole = np.concatenate([self._scheme.decrypt(one) for one in ciphertexts])
        except (ValueError, RuntimeError) as error:
            raise BadMessage("no ciphertext", "a total that cannot be decrypted") from error
        most = total.number * self._codec.largest
        if whole.min() < -most or whole.max() > most:
            raise Aborted("a sum is larger than its rows can be; its limits were broken")
        return whole, total.number


class EncryptingClient:
    """Encrypts encoded rows with the public key of an opening message, and nothing else.

    `session` and `scheme` are what the client knows by itself: it answers no other opening.
    """

    def __init__(self, opening: bytes, codec: Codec, session: Session, scheme: str) -> None:
        self._opening, self._codec = Opening.decode(opening), codec
        found = self._opening
        expected = {
            "scheme": (found.scheme, scheme.encode()),
            "round": (found.round, session.round),
            "exchange": (found.exchange, session.exchange),
            "model": (found.model_hash, session.model_hash),
            "bits": (found.bits, codec.bits),
            "length": (found.length, codec.length),
        }
        for name, (said, known) in expected.items():
            if said != known:
                raise BadMessage(f"wrong {name}", "an opening of another sum than this client's")
        self._scheme, self._context = self._opening.described(), self._opening.context
        self._key = read_public(self._opening.key)

    def encrypt(self, client: int, whole: Whole) -> bytes:
        """The message of `client` with its encoded row `[length]`.

        Raises `ValueError` for a row of another form, or beyond the codec's largest number.
        """
        if whole.shape != (self._codec.length,) or whole.dtype != np.int64:
            raise ValueError(
                f"an encoded row of {whole.dtype} {whole.shape}; expected int64 "
                f"({self._codec.length},)"
            )
        most = self._codec.largest
        if whole.min() < -most or whole.max() > most:
            raise ValueError(f"an encoded row beyond the codec's largest number, {most}")
        slots = self._scheme.slots
        blocks = (whole[start : start + slots] for start in range(0, len(whole), slots))
        ciphertexts = tuple(self._scheme.encrypt(self._key, block) for block in blocks)
        return Row(self._context, client, ciphertexts).encode()


class SummingServer:
    """Adds encrypted rows. It holds one encrypted sum, whatever the cohort, and no secret key.

    Raises `ValueError` for an opening message that has the secret key in it.
    """

    def __init__(self, opening: bytes, limits: Limits) -> None:
        self._opening, self._limits = Opening.decode(opening), limits
        self._key = read_public(self._opening.key)
        self._sum: list[Any] = []
        self._senders: set[int] = set()

    def add(self, message: bytes) -> None:
        """Add one client's row. Raises `BadMessage`, and then the sum is as it was before."""
        row = Row.decode(message)
        if row.number in self._senders:
            raise BadMessage("sent twice", "a second row of one client")
        if len(self._senders) >= self._limits.capacity:
            raise BadMessage("too many", f"more than secure.capacity = {self._limits.capacity}")
        ciphertexts = row.ciphertexts(self._opening, self._key)
        try:  # into a new sum: a library's error half way leaves the old one as it was
            pairs = zip(self._sum, ciphertexts, strict=True)
            self._sum = [total + one for total, one in pairs] if self._sum else ciphertexts
        except (ValueError, RuntimeError) as error:
            raise BadMessage("no ciphertext", "one that cannot be added") from error
        self._senders.add(row.number)

    def total(self) -> bytes:
        """The message to the key holder. Raises `Aborted` where fewer sent than a sum needs."""
        if len(self._senders) < _least(self._limits):
            raise Aborted("fewer clients sent than a sum needs")
        blocks = tuple(bytes(one.serialize()) for one in self._sum)
        return Total(self._opening.context, len(self._senders), blocks).encode()


def _least(limits: Limits) -> int:
    return max(limits.minimum, FEWEST)


class EncryptedChannel:
    """All three parties of one session in one process; every message passes as bytes."""

    def __init__(self, session: Session, scheme: Scheme, codec: Codec, limits: Limits) -> None:
        self.most: float = codec.largest
        self._holder = KeyHolder(session, scheme, codec, limits)
        self._client = EncryptingClient(self._holder.opening, codec, session, scheme.name)
        self._server = SummingServer(self._holder.opening, limits)

    def send(self, client: int, whole: Whole) -> None:
        self._server.add(self._client.encrypt(client, whole))

    def total(self) -> tuple[Whole, int]:
        return self._holder.open(self._server.total())


class _Homomorphic(SecureProtocol):
    """What sums under either scheme have in common."""

    approximate: ClassVar[bool]
    """Whether sums have to be rounded by the key holder, and noised before anyone sees them."""

    @property
    @abstractmethod
    def scheme(self) -> Scheme: ...

    def channel(
        self, session: Session, codec: Codec, limits: Limits, layers: object = None
    ) -> EncryptedChannel:
        if layers is not None:
            raise Refused('layers of noise need secure.protocol = "masks"')
        self.refuse_limits(limits)
        self.refuse_codec(codec, limits)
        return EncryptedChannel(session, self.scheme, codec, limits)

    def seconds(self, codec: Codec, clients: int) -> float:
        """Measured: a block of a row encrypted, read and added."""
        each = 3.3e-3 if self.approximate else 1.8e-3
        blocks = len(self.scheme.blocks(codec.length))
        return super().seconds(codec, clients) + clients * blocks * each

    def download(self, clients: int) -> float:
        """The session's public key."""
        return 124_000.0

    def upload(self, codec: Codec, clients: int) -> float:
        return _HEADER + len(self.scheme.blocks(codec.length)) * (_COUNT.size + CIPHERTEXT)

    def promise(self, clients: int, limits: Limits | None = None) -> str:
        return (
            "the server learns no row (ring-LWE, 128 bits), while it and the key holder follow "
            "the protocol and do not collude"
        )

    def refuse_codec(self, codec: Codec, limits: Limits) -> None:
        """Sums are whole numbers below half the plaintext modulus; they do not wrap at 2^bits."""
        if limits.capacity * codec.largest >= self.scheme.room:
            raise Refused(
                f"sums of {limits.capacity} rows of up to {codec.largest} do not fit "
                f"{self.scheme.room:g}; use fewer secure.bits, a smaller secure.capacity, or "
                'secure.protocol = "masks", whose sums may wrap'
            )

    def refuse_limits(self, limits: Limits) -> None:
        most = self.scheme.most
        if limits.capacity > most:
            instead = "fewer secure.bits, bfv" if self.approximate else "masks"
            raise Refused(
                f"secure.capacity is {limits.capacity}, but {self.scheme.name} with secure.bits = "
                f"{self.bits} is proved for sums of at most {most} rows; use {instead}, or a "
                "smaller capacity"
            )
        if not limits.arithmetic:
            tenseal()


class Bfv(_Homomorphic):
    """Homomorphic sums (BFV): exact; the server adds ciphertexts, a key holder sees the sum.

    Whole numbers modulo a prime of 33 bits, 4096 to a ciphertext: 15.4 bytes a number.

    Of distributed noise the key holder, a client or all of them, knows its own share, and those of
    `colluders`: one client's at least, and a fraction `colluders` of an expected cohort at most.
    """

    bits: int = Field(32, ge=8, le=32)
    colluders: float = Field(0.1, ge=0, lt=1)
    seen: ClassVar[str] = (
        "the server sees ciphertexts, a key holder the exact sum; together they read every row"
    )
    approximate: ClassVar[bool] = False

    @property
    def scheme(self) -> Scheme:
        return BfvScheme(self.bits)

    def colluding(self, limits: Limits) -> float:
        """The key holder is a client, or all are: one at least knows its own share of the noise."""
        return max(1, math.floor(self.colluders * limits.size + 1e-9)) / self.fewest(limits)


class Ckks(_Homomorphic):
    """Homomorphic sums (CKKS): rounded by a key holder, and only for sums that are then noised.

    2048 numbers to a ciphertext, 30.3 bytes a number; BFV needs half and is exact by itself.

    A CKKS result carries the ciphertext's noise in its last digits. Whoever sees it beside the
    ciphertexts computes the secret key from it (Li & Micciancio 2021: CKKS is not IND-CPA-D). Here
    the key holder alone sees decrypted numbers; it rounds them to whole numbers, which are the
    exact sum while the limits hold, and only noised results leave it.
    """

    bits: int = Field(24, ge=8, le=28)
    seen: ClassVar[str] = (
        "the server sees ciphertexts, a key holder the sum; together they read every row"
    )
    approximate: ClassVar[bool] = True

    @property
    def scheme(self) -> Scheme:
        return CkksScheme(self.bits)
