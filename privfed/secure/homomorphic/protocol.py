"""Sums under homomorphic encryption: a server adds ciphertexts that it cannot read.

Three parties. A *key holder*, which is not the server (one of the hospitals, or all clients with
one key), makes a fresh key pair for each session. So a stolen key opens one sum, and no attacker
can provoke and compare errors under one key. Making a key pair takes 4 ms, and each client receives
124 kB. *Clients* encrypt their encoded rows. The *server* adds each message to one encrypted sum as
it arrives and sends the total to the key holder, who decrypts it once.

Protection. The server sees ciphertexts and their senders. The key holder sees the exact sum. It is
trusted to round the sum, and to add central noise, before it releases anything.

Every message is signed by a long-term Ed25519 key of a directory that all parties know beforehand
(a public-key infrastructure; simulated here). The key holder signs the opening, a client its row,
the server the total. Signatures bind the session's context, the sender and the hash
of each ciphertext, and the context binds the parties' configuration. So a party that carries,
changes, swaps, repeats or invents messages, of this session or another, can make a sum fail or lack
a row, but no forged message is accepted. A client encrypts only with a key that the key holder
signed, and whose parameters are those for which sums are proved exact
(`privfed.secure.homomorphic.schemes`). A repeated row or ciphertext of a session is refused,
whatever its sender and its encoding.

Limits. **The key holder and the server together can read every row.** A server can also have one
client's row opened, by sending it to the key holder as the total: **it is trusted to send the total
of all rows**, which its signature states and nothing proves. A client can spoil the sum with its
own row. A client that sees another client's row in transit can add an encryption of zero, and send
this new ciphertext as its own row: transport must hide rows from other clients. A client that
receives an old opening of the same round, exchange and model again answers it, and server and key
holder refuse the answer. No noise flooding is used: it is not proved that a total reveals nothing
beyond the sum to its key holder.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

from pydantic import Field

from privfed.core.errors import Refused
from privfed.privacy.codec import Codec
from privfed.privacy.integers import Integers
from privfed.privacy.noise.shares import Layers
from privfed.privacy.setting import whole_sites
from privfed.secure.encoded_sum import SecureProtocol
from privfed.secure.homomorphic.messages import HEADER, OPENING, SIZE
from privfed.secure.homomorphic.parties import (
    EncryptingClient,
    KeyHolder,
    PartyDirectory,
    SummingServer,
    Terms,
)
from privfed.secure.homomorphic.schemes import (
    CIPHERTEXT,
    PUBLIC_KEY,
    BfvScheme,
    CkksScheme,
    Scheme,
    tenseal,
)
from privfed.secure.identities import (
    client_directory,
    client_identity,
    office_identity,
    verifying_key,
)
from privfed.secure.limits import Limits
from privfed.secure.operations import Operations
from privfed.secure.summation import Session


def party_directory(session: Session) -> PartyDirectory:
    """Returns the simulated directory of a session: its cohort, key holder and server."""
    holder, server = (verifying_key(office_identity(name)) for name in ("holder", "server"))
    return PartyDirectory(holder, server, client_directory(session.clients.tolist()))


class EncryptedChannel:
    """Runs all three parties of one session in one process; every message passes as bytes."""

    def __init__(self, session: Session, scheme: Scheme, codec: Codec, limits: Limits) -> None:
        self.largest: float = codec.largest
        terms = Terms(session, scheme, codec, limits, party_directory(session))
        self._holder = KeyHolder(terms, office_identity("holder"))
        self._client = EncryptingClient(self._holder.opening, terms)
        self._server = SummingServer(self._holder.opening, terms, office_identity("server"))

    def send(self, client: int, row: Integers) -> None:
        self._server.add(self._client.encrypt(client, client_identity(client), row))

    def total(self) -> tuple[Integers, int]:
        return self._holder.open(self._server.total())


class _Homomorphic(SecureProtocol):
    """Base class of the protocols: homomorphic sums under BFV or CKKS."""

    opener: ClassVar[str] = "the key holder"

    @property
    def trusted_parties(self) -> tuple[str, ...]:
        return (*super().trusted_parties, "the key holder not to collude with the server")

    @property
    @abstractmethod
    def scheme(self) -> Scheme:
        """The encryption scheme for numbers of `bits` bits."""

    def channel(
        self, session: Session, codec: Codec, limits: Limits, layers: Layers | None = None
    ) -> EncryptedChannel:
        if layers is not None:
            raise Refused(
                'privacy.sizing is "layers", but layers of noise need masked sums; set '
                'secure.protocol = "masks"'
            )
        self.refuse_limits(limits)
        self.refuse_codec(codec, limits)
        return EncryptedChannel(session, self.scheme, codec, limits)

    def operations(self, codec: Codec, clients: int, layers: int = 0) -> Operations:
        blocks = clients * len(self.scheme.blocks(codec.length))
        signatures = 2 * (clients + 2)  # n rows, opening, total: made, checked
        if self.approximate:
            return Operations(signatures=signatures, approximate_blocks=blocks)
        return Operations(signatures=signatures, exact_blocks=blocks)

    def download(self, clients: int, layers: int = 0) -> float:
        """Returns the size in bytes of the session's opening, mainly of its public key."""
        return float(OPENING + PUBLIC_KEY)

    def upload(self, codec: Codec, clients: int, layers: int = 0) -> float:
        return HEADER + len(self.scheme.blocks(codec.length)) * (SIZE + CIPHERTEXT)

    def promise(self, clients: int, limits: Limits | None = None) -> str:
        return (
            "the server learns no row (ring-LWE, 128 bits) if it and the key holder follow "
            "the protocol and do not collude; altered messages are refused (Ed25519)"
        )

    def refuse_codec(self, codec: Codec, limits: Limits) -> None:
        """Raises `Refused` if sums may reach the scheme's `room`, beyond which they are wrong."""
        if limits.most_rows * codec.largest >= self.scheme.room:
            raise Refused(
                f"sums of {limits.most_rows} rows with numbers up to {codec.largest} exceed "
                f"{self.scheme.room:g}, the largest number that {self.scheme.name} can hold; use "
                'fewer secure.bits, a smaller secure.capacity, or secure.protocol = "masks", whose '
                "sums may wrap"
            )

    def refuse_limits(self, limits: Limits) -> None:
        most = self.scheme.most_rows
        if limits.capacity > most:
            instead = "fewer secure.bits, bfv" if self.approximate else "masks"
            raise Refused(
                f"secure.capacity is {limits.capacity}, but {self.scheme.name} with "
                f"secure.bits = {self.bits} has a proof only for sums of at most {most} rows; "
                f"use {instead}, or a smaller capacity"
            )
        if not limits.arithmetic:
            tenseal()


class Bfv(_Homomorphic):
    """Homomorphic sums (BFV): exact; the server adds ciphertexts, a key holder sees the sum.

    Numbers are integers modulo a prime of 33 bits, 4096 per ciphertext: 15.4 bytes per number.

    The key holder is one client, or all clients. It knows its own share of distributed noise and
    the shares of `colluders`: at least one client's share, and at most those of a fraction
    `colluders` of an expected cohort.
    """

    bits: int = Field(32, ge=8, le=32)
    """The bits of an integer that is summed."""
    colluders: float = Field(0.1, ge=0, lt=1)
    """The fraction of a cohort, or of the sites, whose shares of noise the key holder may know."""
    seen: ClassVar[str] = (
        "the server sees ciphertexts, a key holder the exact sum; together they read every row"
    )

    @property
    def scheme(self) -> Scheme:
        """The BFV scheme, for exact sums of integers of `bits` bits."""
        return BfvScheme(self.bits)

    @property
    def may_collude(self) -> float:
        return self.colluders

    def colluding_sites(self, sites: int) -> int:
        return whole_sites(self.colluders, sites)

    def known_per_colluder(self, limits: Limits) -> float:
        return limits.size / self.fewest(limits)

    def colluders_tolerated(self, limits: Limits) -> float:
        """Returns 1.0 (all clients); with sites, the number of sites.

        Colluding clients receive no other client's row, encrypted or not, and the key holder only
        the sum.
        """
        return float(limits.sites) or 1.0

    def colluding(self, limits: Limits) -> float:
        """Returns the largest fraction of counted noise that the key holder knows.

        It is max(1, floor(`colluders` * `size`)) shares, its own included, divided by `fewest`.
        """
        return max(1, math.floor(self.colluders * limits.size + 1e-9)) / self.fewest(limits)


class Ckks(_Homomorphic):
    """Homomorphic sums (CKKS): a key holder rounds each sum and has to add noise to it.

    A ciphertext has 2048 numbers, 30.3 bytes per number; BFV needs half of that and is exact.

    A CKKS result contains the ciphertext's noise in its last digits. A party that sees it together
    with the ciphertexts can compute the secret key (Li & Micciancio 2021: CKKS is not IND-CPA-D).
    Here only the key holder sees decrypted numbers. It rounds them to integers, which are the exact
    sum within the limits, and releases only noised results.
    """

    bits: int = Field(24, ge=8, le=28)
    """The bits of a number that is summed."""
    seen: ClassVar[str] = (
        "the server sees ciphertexts, a key holder the sum; together they read every row"
    )
    approximate: ClassVar[bool] = True

    @property
    def scheme(self) -> Scheme:
        """The CKKS scheme, whose decrypted sums the key holder rounds to integers."""
        return CkksScheme(self.bits)
