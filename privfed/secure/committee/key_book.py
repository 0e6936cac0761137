"""The public keys of a run: a key card signed by each client, and the book of all cards.

A client draws one X25519 key pair and a nonce for a run. Its long-term Ed25519 key signs both. All
keys and signatures of the run are bound to the book, and so to every nonce in it. So two runs with
an honest client have different books, even if the runs have the same name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from privfed.secure.frames import NUMBER, BadMessage
from privfed.secure.identities import Directory
from privfed.secure.primitives import KEY, KeyPair, LowOrder, SignedMessage, derive, random_key


def agree(pair: KeyPair, public: bytes) -> bytes:
    """Returns the secret that `pair` shares with the holder of `public`.

    Raises `BadMessage` for a key of low order.
    """
    try:
        return pair.agree(public)
    except LowOrder as error:
        raise BadMessage("low-order key", str(error)) from error


def run_secret(book: bytes, secret: bytes, client: int, other: int) -> bytes:
    """Returns s_uv `[32]`, from which two clients derive their secrets of all rounds of a run.

    It is derived from the `secret` on which they agreed and from `book`, the digest of the run's
    key book (`KeyBook.digest`). The order of `client` and `other` does not matter.
    """
    return derive(secret, book, b"committee run" + _between(*sorted((client, other))))


def pair_seed(agreed: bytes, secret: bytes, client: int, other: int) -> bytes:
    """Returns r_uv `[32]`: the seed of two clients' mask under the roster of hash `agreed`.

    `secret` is the clients' secret of the exchange (`Keyring.take`). Their order does not matter.
    """
    return derive(secret, agreed, b"committee pair" + _between(*sorted((client, other))))


def mask_key(agreed: bytes, seed: bytes) -> bytes:
    """Returns the key of the mask of `seed`, under the roster of hash `agreed`.

    `seed` is the seed of a pair (`pair_seed`), or a client's own fresh seed.
    """
    return derive(seed, agreed, b"committee mask")


def sealing_key(agreed: bytes, secret: bytes, sender: int, receiver: int) -> bytes:
    """Returns the key that encrypts what `sender` deals to the member `receiver`.

    `secret` is their secret of the exchange (`Keyring.take`); `agreed` is the hash of the roster.
    """
    return derive(secret, agreed, b"committee seal" + _between(sender, receiver))


def _between(client: int, other: int) -> bytes:
    return NUMBER.pack(client) + NUMBER.pack(other)


def shares_context(agreed: bytes, sender: int, receiver: int) -> bytes:
    """Returns the associated data of encrypted shares: roster hash `agreed`, sender, receiver."""
    return agreed + _between(sender, receiver)


@dataclass(frozen=True)
class KeyCard(SignedMessage):
    """A client's public key `[32]` for the run named `run` `[32]`, signed by the client.

    The client draws the `nonce` `[32]` for this card alone.
    """

    run: bytes
    client: int
    public: bytes
    nonce: bytes
    kind: ClassVar[int] = 1
    domain: ClassVar[bytes] = b"privfed committee"

    def covered(self) -> tuple[bytes, ...]:
        return self.run, NUMBER.pack(self.client), self.public, self.nonce


@dataclass(frozen=True)
class KeyBook:
    """The cards of all clients of the run named `run`, by client; every client knows the book.

    `identities` are the clients' long-term public signing keys, from a trusted source.
    """

    run: bytes
    identities: Directory
    cards: Mapping[int, KeyCard]

    def check(self) -> None:
        """Checks all cards; a client may store the `digest` of a book instead of checking it again.

        Raises:
          BadMessage: if a card belongs to an unknown client or to another run, lacks a valid
            signature, has a key or nonce of the wrong length, or has a key of another card or of
            low order, which allows no agreement.
        """
        if self.cards.keys() - self.identities.keys():
            raise BadMessage("unknown client", "the book holds the key card of an unknown client")
        if len({card.public for card in self.cards.values()}) != len(self.cards):
            raise BadMessage("duplicate key", "two public keys of the book are the same")
        probe = KeyPair(random_key())
        for client, card in self.cards.items():
            if (card.client, card.run) != (client, self.run):
                raise BadMessage("wrong card", "a key card is of another client, or another run")
            if (len(card.public), len(card.nonce)) != (KEY, KEY):
                raise BadMessage("wrong card", "a key or nonce has the wrong length")
            if not card.signed_by(self.identities[client]):
                raise BadMessage("wrong signature", "a key card is not signed by its client")
            try:
                agree(probe, card.public)
            except BadMessage as error:
                raise BadMessage("low-order key", f"the card of client {client}") from error

    @cached_property
    def digest(self) -> bytes:
        """The SHA-256 hash `[32]` of the run's name and of all cards without their signatures."""
        cards = (self.cards[client] for client in sorted(self.cards))
        text = b"".join(NUMBER.pack(card.client) + card.public + card.nonce for card in cards)
        return hashlib.sha256(b"privfed key book" + self.run + text).digest()
