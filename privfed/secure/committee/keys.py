"""The long-term keys of a run: agreed once, and what every round derives from them.

A client has one X25519 key pair for a run, whose public half its long-term Ed25519 key signed. What
two clients agree on with it is the same in all rounds, and never leaves them: each round derives
from it, bound to that round's roster.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from privfed.secure.frames import NUMBER, BadMessage
from privfed.secure.identities import Directory
from privfed.secure.primitives import KeyPair, LowOrder, derive
from privfed.secure.signed_message import SignedMessage


@dataclass(frozen=True)
class KeyCard(SignedMessage):
    """A client's public key `[32]` for the run with the name `run` `[32]`, signed by the client."""

    run: bytes
    client: int
    public: bytes
    kind: ClassVar[int] = 1
    domain: ClassVar[bytes] = b"privfed committee"

    def covered(self) -> bytes:
        return self.run + NUMBER.pack(self.client) + self.public


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

        Once a run: who keeps the `digest` of a book that it has checked knows it again.
        """
        if self.cards.keys() - self.identities.keys():
            raise BadMessage("unknown client", "a card of a client that nobody knows")
        if len({card.public for card in self.cards.values()}) != len(self.cards):
            raise BadMessage("duplicate key", "two public keys of the book are the same")
        for client, card in self.cards.items():
            if (card.client, card.run) != (client, self.run):
                raise BadMessage("wrong card", "a card of another client, or of another run")
            if not card.signed_by(self.identities[client]):
                raise BadMessage("wrong signature", "a card that its client did not sign")

    @cached_property
    def digest(self) -> bytes:
        """The hash of all its cards, by which clients compare it."""
        cards = (self.cards[client] for client in sorted(self.cards))
        text = b"".join(NUMBER.pack(card.client) + card.public for card in cards)
        return hashlib.sha256(b"privfed key book" + self.run + text).digest()


class Keyring:
    """A client's long-term private key, and what it has agreed on with others so far."""

    def __init__(self, private: bytes) -> None:
        self.pair = KeyPair(private)
        self._agreed: dict[bytes, bytes] = {}

    @property
    def public(self) -> bytes:
        """The public half of its key."""
        return self.pair.public

    def secret(self, public: bytes) -> bytes:
        """What it shares with the holder of `public`: computed once a run. Or `BadMessage`."""
        if public not in self._agreed:
            self._agreed[public] = agree(self.pair, public)
        return self._agreed[public]


def agree(pair: KeyPair, public: bytes) -> bytes:
    """The secret that `pair` shares with the holder of `public`. Raises `BadMessage`."""
    try:
        return pair.agree(public)
    except LowOrder as error:
        raise BadMessage("low-order key", str(error)) from error


def pair_seed(agreed: bytes, secret: bytes, client: int, other: int) -> bytes:
    """r_uv `[32]`: what two clients mask with under the roster with the hash `agreed`."""
    return derive(secret, agreed, b"committee pair" + _between(*sorted((client, other))))


def mask_key(agreed: bytes, seed: bytes) -> bytes:
    """What a mask is expanded from: of a pair's seed, or of a client's fresh one."""
    return derive(seed, agreed, b"committee mask")


def sealing_key(agreed: bytes, fresh: bytes, secret: bytes, sender: int, receiver: int) -> bytes:
    """What shares are sealed with.

    `secret` is of the two long-term keys, and so tells that the sender sealed; `fresh` is of the
    receiver's and a key of this message alone, so that the sender's long-term key opens nothing.
    """
    return derive(fresh + secret, agreed, b"committee seal" + _between(sender, receiver))


def _between(client: int, other: int) -> bytes:
    return NUMBER.pack(client) + NUMBER.pack(other)


def shares_context(agreed: bytes, sender: int, receiver: int) -> bytes:
    """What a sealed text is bound to: the roster under which it was dealt, and whom it is for."""
    return agreed + _between(sender, receiver)
