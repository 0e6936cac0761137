"""The three parties of a homomorphic sum. Each checks who signed a message before it reads more.

They know each other's long-term keys (`PartyDirectory`) and what they were configured with
(`Terms`) beforehand, from elsewhere; nothing of it is taken from a message.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privfed.privacy.codec import Codec
from privfed.privacy.integers import Integers
from privfed.secure.frames import BadMessage
from privfed.secure.homomorphic.messages import Opening, Row, Total
from privfed.secure.homomorphic.schemes import Scheme, tenseal
from privfed.secure.identities import Directory, agreement
from privfed.secure.limits import FEWEST, Limits
from privfed.secure.primitives import KEY
from privfed.secure.summation import Aborted, Session


def public_half(keys: Any) -> bytes:
    """The public key and the parameters of TenSEAL's `keys`, and no other key.

    Always by way of bytes: TenSEAL's `make_context_public` forgets the secret key but keeps a
    decryptor that still works.
    """
    return bytes(
        keys.serialize(
            save_public_key=True,
            save_secret_key=False,
            save_galois_keys=False,
            save_relin_keys=False,
        )
    )


def read_public(data: bytes, scheme: Scheme) -> Any:
    """A public key with the parameters of `scheme`. Raises `BadMessage`.

    Raises `ValueError` where a secret key is with it.
    """
    try:
        key = tenseal().context_from(data, n_threads=1)
        public = key.has_public_key()  # which TenSEAL cannot say of a symmetric one
    except (ValueError, RuntimeError) as error:
        raise BadMessage("no public key", "bytes that TenSEAL cannot read") from error
    if key.has_secret_key():
        raise ValueError("a context with its secret key; only the key holder may have that one")
    if not public:
        raise BadMessage("no public key", "a context without one")
    check_parameters(key, scheme)
    return key


def check_parameters(key: Any, scheme: Scheme) -> None:
    """Raises `BadMessage` where N, q or t of `key` are not those that `scheme` is proved for.

    TenSEAL shows no moduli, but SEAL hashes all of them with the scheme and N: BLAKE2b over words
    of 64 bits. The hash of the scheme's constants has to be the same.
    """
    context, expected = key.seal_context().data, scheme.parameters
    if list(context.key_parms_id()) != _identifier(scheme):
        key_data = context.key_context_data()
        raise BadMessage(
            "wrong parameters",
            f"a key with N = {key_data.parms().poly_modulus_degree()} and moduli of "
            f"{key_data.total_coeff_modulus_bit_count()} bits; expected the N = {expected.degree}, "
            f"moduli {expected.moduli} and t = {expected.plain} of {scheme.name}",
        )


def _identifier(scheme: Scheme) -> list[int]:
    """SEAL's `parms_id`: four words."""
    parameters = scheme.parameters
    words = (scheme.code, parameters.degree, *parameters.moduli, parameters.plain)
    hashed = hashlib.blake2b(struct.pack(f"<{len(words)}Q", *words), digest_size=32)
    return list(struct.unpack("<4Q", hashed.digest()))


@dataclass(frozen=True)
class PartyDirectory:
    """Long-term Ed25519 public keys: of the key holder, the server, and each client asked."""

    holder: bytes
    server: bytes
    clients: Directory


@dataclass(frozen=True)
class Terms:
    """What each party knows by itself of the one sum that it takes part in."""

    session: Session
    scheme: Scheme
    codec: Codec
    limits: Limits
    directory: PartyDirectory

    @cached_property
    def agreed(self) -> bytes:
        """The hash of all that the parties have to be configured alike for."""
        return agreement(
            sum="homomorphic",
            scheme=self.scheme,
            parameters=self.scheme.parameters,
            scale=self.scheme.scale,
            codec=self.codec,
            limits=self.limits,
        )

    @property
    def largest(self) -> int:
        """The largest number that a party sends: of a site, the sum of all rows there may be."""
        return self.codec.largest * (self.limits.rows if self.limits.sites else 1)

    @property
    def least(self) -> int:
        """How many rows a total has at least."""
        return max(self.limits.minimum, FEWEST)

    def accept(self, message: bytes) -> tuple[Opening, Any]:
        """An opening of this sum by its key holder, and its public key. Raises `BadMessage`.

        Raises `ValueError` for an opening that has the secret key in it.
        """
        opening = Opening.decode(message)
        opening.check(self.directory.holder)
        settings = {
            "scheme": (opening.scheme, self.scheme.name.encode()),
            "round": (opening.round, self.session.round),
            "exchange": (opening.exchange, self.session.exchange),
            "model": (opening.model_hash, self.session.model_hash),
            "bits": (opening.bits, self.codec.bits),
            "length": (opening.length, self.codec.length),
            "agreement": (opening.agreed, self.agreed),
        }
        for name, (stated, expected) in settings.items():
            if stated != expected:
                raise BadMessage(f"wrong {name}", "an opening of another sum than this party's")
        return opening, read_public(opening.key, self.scheme)


class KeyHolder:
    """Makes a session's keys and opens its total: the one party that has the secret key.

    `identity` is its long-term key, as each party's is. It opens what the server signed, and
    cannot tell whether the total is of all the rows that the server was sent.
    """

    def __init__(self, terms: Terms, identity: Ed25519PrivateKey) -> None:
        self._terms, self._keys, self._done = terms, terms.scheme.keys(), False
        check_parameters(self._keys, terms.scheme)
        session = terms.session
        self._opening = Opening(
            terms.scheme.name.encode(),
            session.round,
            session.exchange,
            terms.scheme.bits,
            terms.codec.length,
            session.model_hash,
            terms.agreed,
            os.urandom(KEY),
            public_half(self._keys),
        ).signed(identity)

    @property
    def opening(self) -> bytes:
        """The key holder's message to the server and to all clients."""
        return self._opening.encode()

    def open(self, message: bytes) -> tuple[Integers, int]:
        """The exact sum `[length]` and of how many rows it is. Raises `Aborted`.

        It opens one total only: a second would tell the difference of the two, which may be one
        row.
        """
        terms, total = self._terms, Total.decode(message)
        if total.context != self._opening.context:
            raise BadMessage("wrong session", "a message of another one")
        total.check(terms.directory.server)
        if not terms.least <= total.number <= terms.limits.capacity:
            raise BadMessage("wrong number", "a total of too few rows, or beyond secure.capacity")
        ciphertexts = total.ciphertexts(terms.scheme, self._keys, terms.codec.length)
        if self._done:
            raise BadMessage("sent twice", "a second total in one session")
        self._done = True
        try:
            summed = np.concatenate([terms.scheme.decrypt(block) for block in ciphertexts])
        except (ValueError, RuntimeError) as error:
            raise BadMessage("no ciphertext", "a total that cannot be decrypted") from error
        most = total.number * terms.largest
        if summed.min() < -most or summed.max() > most:
            raise Aborted("a sum is larger than its rows can be; its limits were broken")
        return summed, total.number


class EncryptingClient:
    """Encrypts encoded rows with the public key of an opening message, and signs them.

    It answers an opening of its own sum that the key holder signed, whose key has the scheme's own
    parameters, and no other. In a simulation all clients share this object.
    """

    def __init__(self, opening: bytes, terms: Terms) -> None:
        self._terms = terms
        accepted, self._key = terms.accept(opening)
        self._context = accepted.context

    def encrypt(self, client: int, identity: Ed25519PrivateKey, row: Integers) -> bytes:
        """The message of `client`, whose long-term key `identity` is, with its row `[length]`.

        Raises `ValueError` for a row of another form, or beyond the largest number of a party.
        """
        scheme, codec = self._terms.scheme, self._terms.codec
        if row.shape != (codec.length,) or row.dtype != np.int64:
            raise ValueError(
                f"an encoded row of {row.dtype} {row.shape}; expected int64 ({codec.length},)"
            )
        most = self._terms.largest
        if row.min() < -most or row.max() > most:
            raise ValueError(f"an encoded row beyond the largest number that a party sends, {most}")
        starts = range(0, len(row), scheme.slots)
        blocks = (row[start : start + scheme.slots] for start in starts)
        ciphertexts = tuple(scheme.encrypt(self._key, block) for block in blocks)
        return Row(self._context, client, ciphertexts).signed(identity).encode()


class SummingServer:
    """Adds encrypted rows of the directory's clients; it has no secret key.

    It holds one encrypted sum, whatever the cohort, and 32 bytes for each ciphertext in it.
    """

    def __init__(self, opening: bytes, terms: Terms, identity: Ed25519PrivateKey) -> None:
        self._terms, self._identity = terms, identity
        accepted, self._key = terms.accept(opening)
        self._context = accepted.context
        self._sum: list[Any] = []
        self._senders: set[int] = set()
        self._hashes: set[bytes] = set()

    def add(self, message: bytes) -> None:
        """Add one client's row. Raises `BadMessage`, and then the sum is as it was before."""
        row = self._signed(message)
        terms = self._terms
        if row.number in self._senders:
            raise BadMessage("sent twice", "a second row of one client")
        if len(self._senders) >= terms.limits.capacity:
            raise BadMessage("too many", f"more than secure.capacity = {terms.limits.capacity}")
        ciphertexts = row.ciphertexts(terms.scheme, self._key, terms.codec.length)
        hashes = self._unseen(ciphertexts)
        try:  # into a new sum: a library's error half way leaves the old one as it was
            pairs = zip(self._sum, ciphertexts, strict=True)
            self._sum = [total + block for total, block in pairs] if self._sum else ciphertexts
        except (ValueError, RuntimeError) as error:
            raise BadMessage("no ciphertext", "one that cannot be added") from error
        self._senders.add(row.number)
        self._hashes |= hashes

    def _signed(self, message: bytes) -> Row:
        """A row of this session that a client of the directory signed."""
        row = Row.decode(message)
        if row.context != self._context:
            raise BadMessage("wrong session", "a message of another one")
        public = self._terms.directory.clients.get(row.number)
        if public is None:
            raise BadMessage("unknown sender", "a client that is not in the directory")
        row.check(public)
        return row

    def _unseen(self, ciphertexts: list[Any]) -> set[bytes]:
        """The hashes of ciphertexts that are new in this session, whatever bytes they came in.

        They are of SEAL's ciphertext alone, written anew: these numbers, and nothing else, are what
        is summed.
        """
        content = self._terms.scheme.content
        contents = (content(bytes(block.serialize()), block.size()) for block in ciphertexts)
        hashes = {hashlib.sha256(data).digest() for data in contents}
        if len(hashes) < len(ciphertexts) or hashes & self._hashes:
            raise BadMessage("duplicate ciphertext", "one that is in a row of this session already")
        return hashes

    def total(self) -> bytes:
        """The message with the sum to the key holder. Raises `Aborted` for too few rows."""
        if len(self._senders) < self._terms.least:
            raise Aborted("fewer clients sent than a sum needs")
        blocks = tuple(bytes(block.serialize()) for block in self._sum)
        return Total(self._context, len(self._senders), blocks).signed(self._identity).encode()
