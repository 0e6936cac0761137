"""A committee's sum in one process: every message flows as bytes between the server and clients."""

from __future__ import annotations

import functools
import math
import os

import numpy as np

from privfed.privacy.codec import Codec
from privfed.privacy.integers import Integers
from privfed.secure.committee.client import CommitteeClient, Turns
from privfed.secure.committee.keys import KeyBook, KeyCard, Keyring
from privfed.secure.committee.messages import message_bytes, read_message
from privfed.secure.committee.policy import CommitteePolicy
from privfed.secure.committee.server import CommitteeServer
from privfed.secure.committee.terms import RoundTerms
from privfed.secure.delivery import Delivery, Wire, leaves_of
from privfed.secure.dropout import Leaves
from privfed.secure.identities import client_directory, client_identity
from privfed.secure.limits import UNLIMITED, Limits
from privfed.secure.primitives import KEY, KeyPair
from privfed.secure.summation import Session


@functools.cache
def _run() -> bytes:
    """The simulated name of the run."""
    return os.urandom(KEY)


@functools.lru_cache(maxsize=1 << 14)
def client_pair(client: int) -> KeyPair:
    """The simulated key of a client for the run."""
    return KeyPair(os.urandom(KEY))


@functools.lru_cache(maxsize=1 << 14)
def _card(client: int) -> KeyCard:
    return KeyCard(_run(), client, client_pair(client).public).signed(client_identity(client))


@functools.lru_cache(maxsize=64)
def key_book(clients: tuple[int, ...]) -> KeyBook:
    """The simulated book of `clients`, which all of them have checked."""
    book = KeyBook(_run(), client_directory(clients), {client: _card(client) for client in clients})
    book.check()
    return book


@functools.lru_cache(maxsize=4)
def _rings(clients: tuple[int, ...]) -> dict[int, Keyring]:
    book = key_book(clients)
    return {client: Keyring(client_pair(client), book) for client in clients}


def client_rings(clients: tuple[int, ...], round: int) -> dict[int, Keyring]:
    """What `clients` agreed on: in earlier rounds of a run, or anew where another run begins."""
    rings = _rings(clients)
    if any(ring.round > round for ring in rings.values()):
        _rings.cache_clear()
        rings = _rings(clients)
    return rings


class CommitteeChannel:
    """A server and its clients, who send their rows one by one, and some of whom open the sum.

    Who is refused by name, or refuses, counts as dropped; `faults` lists the names.
    """

    largest = math.inf

    def __init__(
        self,
        session: Session,
        codec: Codec,
        policy: CommitteePolicy,
        limits: Limits = UNLIMITED,
        wire: Wire | None = None,
    ) -> None:
        self._codec = codec
        everybody = tuple(sorted(session.clients.tolist()))
        self._rows: dict[int, Integers] = {}
        terms = RoundTerms(
            session.round,
            session.exchange,
            session.model_hash,
            codec,
            policy,
            limits,
            key_book(everybody),
        )
        self.server = CommitteeServer(terms, everybody)
        rings = client_rings(everybody, session.round)
        self.clients = {
            who: CommitteeClient(
                who,
                client_identity(who),
                rings[who],
                terms,
                functools.partial(self._rows.pop, who),
                Turns(),
            )
            for who in everybody
        }
        parties, leaves = (self.server, self.clients), leaves_of(session)
        self._delivery = Delivery(wire or Wire(), message_bytes, read_message, *parties, leaves)
        self.faults = self._delivery.faults

    def send(self, client: int, row: Integers) -> None:
        self._rows[client] = row
        self._delivery.ask({client: self.server.call}, Leaves.BEFORE_MASKING)
        self._rows.pop(client, None)

    def total(self) -> tuple[Integers, int]:
        with self._delivery.naming_faults():
            for _ in range(2):
                self._delivery.ask(self.server.proceed(), Leaves.BEFORE_UNMASKING)
            words, survivors = self.server.total()
        return self._codec.unwrap(words.astype(np.uint64)), survivors
