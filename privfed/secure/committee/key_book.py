"""The public keys of a run: a card that each client signed, and the book of all of them.

A client has one X25519 key pair for a run, and draws with it a nonce. Its long-term Ed25519 key
signs both. All that is derived or signed in the run is bound to the book, and so to every nonce in
it: no two books with an honest client's fresh card are alike, whatever a run is named.
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
    """The secret that `pair` shares with the holder of `public`. Raises `BadMessage`."""
    try:
        return pair.agree(public)
    except LowOrder as error:
        raise BadMessage("low-order key", str(error)) from error


def run_secret(book: bytes, secret: bytes, client: int, other: int) -> bytes:
    """s_uv `[32]`: what two clients begin a run with, from what their keys in `book` agree on."""
    return derive(secret, book, b"committee run" + _between(*sorted((client, other))))


def pair_seed(agreed: bytes, secret: bytes, client: int, other: int) -> bytes:
    """r_uv `[32]`: what two clients mask with under the roster with the hash `agreed`."""
    return derive(secret, agreed, b"committee pair" + _between(*sorted((client, other))))


def mask_key(agreed: bytes, seed: bytes) -> bytes:
    """What a mask is expanded from: of a pair's seed, or of a client's fresh one."""
    return derive(seed, agreed, b"committee mask")


def sealing_key(agreed: bytes, secret: bytes, sender: int, receiver: int) -> bytes:
    """What a member's key is sealed with: one text for each roster and direction."""
    return derive(secret, agreed, b"committee seal" + _between(sender, receiver))


def _between(client: int, other: int) -> bytes:
    return NUMBER.pack(client) + NUMBER.pack(other)


def shares_context(agreed: bytes, sender: int, receiver: int) -> bytes:
    """What a sealed text is bound to: the roster under which it was dealt, and whom it is for."""
    return agreed + _between(sender, receiver)


@dataclass(frozen=True)
class KeyCard(SignedMessage):
    """A client's public key `[32]` for the run with the name `run` `[32]`, signed by the client.

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
    """The cards of all clients of the run `run`, which all of them know.

    `identities` are their long-term keys, known from elsewhere.
    """

    run: bytes
    identities: Directory
    cards: Mapping[int, KeyCard]

    def check(self) -> None:
        """Raises `BadMessage` for cards of others, of another run, without a signature, or alike.

        And for a key of low order, with which nobody could agree on anything.

        Once a run: who keeps the `digest` of a book that it has checked knows it again.
        """
        if self.cards.keys() - self.identities.keys():
            raise BadMessage("unknown client", "a card of a client that nobody knows")
        if len({card.public for card in self.cards.values()}) != len(self.cards):
            raise BadMessage("duplicate key", "two public keys of the book are the same")
        probe = KeyPair(random_key())
        for client, card in self.cards.items():
            if (card.client, card.run) != (client, self.run):
                raise BadMessage("wrong card", "a card of another client, or of another run")
            if (len(card.public), len(card.nonce)) != (KEY, KEY):
                raise BadMessage("wrong card", "a key or a nonce of another length")
            if not card.signed_by(self.identities[client]):
                raise BadMessage("wrong signature", "a card that its client did not sign")
            try:
                agree(probe, card.public)
            except BadMessage as error:
                raise BadMessage("low-order key", f"the card of client {client}") from error

    @cached_property
    def digest(self) -> bytes:
        """The hash of all its cards, by which clients compare it."""
        cards = (self.cards[client] for client in sorted(self.cards))
        text = b"".join(NUMBER.pack(card.client) + card.public + card.nonce for card in cards)
        return hashlib.sha256(b"privfed key book" + self.run + text).digest()
