"""The three parties of a homomorphic sum. Each verifies the signature of a message before its use.

They know each other's long-term keys (`PartyDirectory`) and their configuration (`Terms`)
beforehand, from another source than the messages.
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
from privfed.secure.agreement import agreement
from privfed.secure.frames import BadMessage
from privfed.secure.homomorphic.messages import Opening, Row, Total
from privfed.secure.homomorphic.schemes import Scheme, tenseal
from privfed.secure.identities import Directory
from privfed.secure.limits import FEWEST, Limits
from privfed.secure.primitives import KEY
from privfed.secure.summation import Aborted, Session


def public_half(keys: Any) -> bytes:
    """Returns the public key and the parameters of TenSEAL's `keys`, and no other key.

    The result is bytes, because TenSEAL's `make_context_public` drops the secret key but keeps a
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
    """Parses a public key with the parameters of `scheme`.

    Raises:
      BadMessage: for invalid bytes or other parameters.
      ValueError: if a secret key is included.
    """
    try:
        key = tenseal().context_from(data, n_threads=1)
        public = key.has_public_key()  # TenSEAL raises an error here for a symmetric one
    except (ValueError, RuntimeError) as error:
        raise BadMessage("no public key", "TenSEAL cannot read the bytes") from error
    if key.has_secret_key():
        raise ValueError(
            "the encryption context has a secret key, which only the key holder may have"
        )
    if not public:
        raise BadMessage("no public key", "the encryption context has no public key")
    check_parameters(key, scheme)
    return key


def check_parameters(key: Any, scheme: Scheme) -> None:
    """Raises `BadMessage` unless `key` has the parameters for which `scheme` has a proof.

    These are the ring degree N, the moduli and the plain modulus t.

    TenSEAL does not expose the moduli, but SEAL hashes all of them with the scheme and N: BLAKE2b
    over words of 64 bits. This hash must equal that of the scheme's constants.
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
    """Returns the parameters' hash, SEAL's `parms_id`: four words of 64 bits."""
    parameters = scheme.parameters
    words = (scheme.code, parameters.degree, *parameters.moduli, parameters.plain)
    hashed = hashlib.blake2b(struct.pack(f"<{len(words)}Q", *words), digest_size=32)
    return list(struct.unpack("<4Q", hashed.digest()))


@dataclass(frozen=True)
class PartyDirectory:
    """Long-term Ed25519 public keys of the key holder, the server, and each invited client."""

    holder: bytes
    server: bytes
    clients: Directory


@dataclass(frozen=True)
class Terms:
    """The properties of a sum that a party knows before any message."""

    session: Session
    scheme: Scheme
    codec: Codec
    limits: Limits
    directory: PartyDirectory

    @cached_property
    def agreed(self) -> bytes:
        """The hash of the configuration that all parties must share."""
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
        """The largest absolute value in a row, or with sites in one site's sum of all rows."""
        return self.codec.largest * (self.limits.rows if self.limits.sites else 1)

    @property
    def least(self) -> int:
        """The smallest number of rows in a total that the key holder opens, at least two."""
        return max(self.limits.minimum, FEWEST)

    def accept(self, message: bytes) -> tuple[Opening, Any]:
        """Returns the key holder's opening of this sum, and the public key in it.

        Raises:
          BadMessage: if the opening is malformed, not signed by the key holder, of another sum or
            configuration, or with a key of other parameters.
          ValueError: if the opening contains the secret key.
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
                raise BadMessage(f"wrong {name}", "the opening is of another sum than this party's")
        return opening, read_public(opening.key, self.scheme)


class KeyHolder:
    """Creates a session's keys and opens the total; only the key holder has the secret key.

    `identity` is the key holder's long-term signing key. The key holder decrypts the total that the
    server signed. It cannot verify that the total contains all rows that the server received.
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
        """Returns the exact sum `[length]` and its number of rows.

        The key holder opens only one total: a second one would reveal the difference, which may be
        one row.

        Raises:
          Aborted: usually as `BadMessage`: if the total is malformed, not signed by the server, of
            another session, or a second one; if it has fewer than `Terms.least` rows or more than
            the capacity; if a value exceeds what its rows permit.
        """
        terms, total = self._terms, Total.decode(message)
        if total.context != self._opening.context:
            raise BadMessage("wrong session", "the message belongs to another session")
        total.check(terms.directory.server)
        if not terms.least <= total.number <= terms.limits.capacity:
            raise BadMessage("wrong number", "the total has too few or too many rows")
        ciphertexts = total.ciphertexts(terms.scheme, self._keys, terms.codec.length)
        if self._done:
            raise BadMessage("sent twice", "the total is the second one of this session")
        self._done = True
        try:
            summed = np.concatenate([terms.scheme.decrypt(block) for block in ciphertexts])
        except (ValueError, RuntimeError) as error:
            raise BadMessage("no ciphertext", "the total cannot be decrypted") from error
        most = total.number * terms.largest
        if summed.min() < -most or summed.max() > most:
            raise Aborted("a sum is larger than its rows permit; their limits were exceeded")
        return summed, total.number


class EncryptingClient:
    """Encrypts encoded rows with the public key of an opening, and signs them.

    It answers only an opening of its own sum that the key holder signed and whose key has the
    scheme's parameters. In a simulation all clients share this object.
    """

    def __init__(self, opening: bytes, terms: Terms) -> None:
        self._terms = terms
        accepted, self._key = terms.accept(opening)
        self._context = accepted.context

    def encrypt(self, client: int, identity: Ed25519PrivateKey, row: Integers) -> bytes:
        """Returns the message of `client` with its row `[length]`, signed by `identity`.

        Raises:
          ValueError: if the row has another shape or type, or numbers above `Terms.largest` in
            absolute value.
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

    It holds one encrypted sum, whatever the cohort's size, and a hash of each added ciphertext.
    """

    def __init__(self, opening: bytes, terms: Terms, identity: Ed25519PrivateKey) -> None:
        self._terms, self._identity = terms, identity
        accepted, self._key = terms.accept(opening)
        self._context = accepted.context
        self._sum: list[Any] = []
        self._senders: set[int] = set()
        self._hashes: set[bytes] = set()

    def add(self, message: bytes) -> None:
        """Adds one client's encrypted row.

        Raises `BadMessage` for an invalid message, which leaves the sum unchanged.
        """
        row = self._signed(message)
        terms = self._terms
        if row.number in self._senders:
            raise BadMessage("sent twice", "the client has already sent a row")
        if len(self._senders) >= terms.limits.capacity:
            most = terms.limits.capacity
            raise BadMessage("too many", f"more rows than secure.capacity = {most}")
        ciphertexts = row.ciphertexts(terms.scheme, self._key, terms.codec.length)
        hashes = self._unseen(ciphertexts)
        try:  # a new sum: after an error the old one is unchanged
            pairs = zip(self._sum, ciphertexts, strict=True)
            self._sum = [total + block for total, block in pairs] if self._sum else ciphertexts
        except (ValueError, RuntimeError) as error:
            raise BadMessage("no ciphertext", "a ciphertext cannot be added") from error
        self._senders.add(row.number)
        self._hashes |= hashes

    def _signed(self, message: bytes) -> Row:
        """Parses a row. Raises `BadMessage` unless a client of this session signed it."""
        row = Row.decode(message)
        if row.context != self._context:
            raise BadMessage("wrong session", "the message belongs to another session")
        public = self._terms.directory.clients.get(row.number)
        if public is None:
            raise BadMessage("unknown sender", "the client is not in the directory of public keys")
        row.check(public)
        return row

    def _unseen(self, ciphertexts: list[Any]) -> set[bytes]:
        """Returns the hashes of `ciphertexts`, which must be new to the session and distinct.

        Raises `BadMessage` otherwise. The hashes cover SEAL's ciphertext alone, re-serialised: only
        these numbers are summed.
        """
        content = self._terms.scheme.content
        contents = (content(bytes(block.serialize()), block.size()) for block in ciphertexts)
        hashes = {hashlib.sha256(data).digest() for data in contents}
        if len(hashes) < len(ciphertexts) or hashes & self._hashes:
            raise BadMessage(
                "duplicate ciphertext", "a ciphertext is already in another row of this session"
            )
        return hashes

    def total(self) -> bytes:
        """Returns the message to the key holder with the encrypted sum.

        Raises `Aborted` if there are fewer rows than a sum requires.
        """
        if len(self._senders) < self._terms.least:
            raise Aborted("fewer clients sent a row than a sum requires")
        blocks = tuple(bytes(block.serialize()) for block in self._sum)
        return Total(self._context, len(self._senders), blocks).signed(self._identity).encode()
