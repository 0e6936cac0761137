"""A committee's sum in one process: messages pass as bytes between the server and its clients.

This module also holds the keys of all clients, because a simulation runs them in one process.

A deployment has one key book for all clients of a run, and clients agree on secrets once. In this
simulation each cohort has its own key book, so each new cohort agrees on new secrets. Measured
times of simulated rounds include this agreement; estimates of operations and bytes do not.
"""

from __future__ import annotations

import functools
import math
import os
from dataclasses import dataclass

import numpy as np

from privfed.privacy.codec import Codec
from privfed.privacy.integers import Integers
from privfed.secure.channel import Delivery, Wire
from privfed.secure.committee.client import CommitteeClient
from privfed.secure.committee.key_book import KeyBook, KeyCard
from privfed.secure.committee.keyring import Keyring
from privfed.secure.committee.messages import message_bytes, read_message
from privfed.secure.committee.policy import CommitteePolicy
from privfed.secure.committee.server import CommitteeServer
from privfed.secure.committee.terms import RoundTerms
from privfed.secure.identities import client_directory, client_identity
from privfed.secure.limits import UNLIMITED, Leaves, Limits
from privfed.secure.primitives import KEY, KeyPair
from privfed.secure.summation import Session


@dataclass(frozen=True)
class SimulatedRun:
    """The verified key `book` of a run, and the key `pairs` of all its clients, by client."""

    book: KeyBook
    pairs: dict[int, KeyPair]

    @functools.cached_property
    def rings(self) -> dict[int, Keyring]:
        """The key ring of each client, created once; secrets taken from it are used up."""
        return {client: self.ring(client) for client in self.book.cards}

    def ring(self, client: int) -> Keyring:
        """Returns a new key ring of this client, from which no secret has been taken."""
        return Keyring(self.pairs[client], self.book.cards[client], self.book)


def simulated_keys(clients: tuple[int, ...], name: bytes | None = None) -> SimulatedRun:
    """Returns new keys of `clients`, for a run named `name` `[32]`; None draws a random name."""
    name = name or os.urandom(KEY)
    pairs = {client: KeyPair(os.urandom(KEY)) for client in clients}
    cards = {
        client: KeyCard(name, client, pair.public, os.urandom(KEY)).signed(client_identity(client))
        for client, pair in pairs.items()
    }
    book = KeyBook(name, client_directory(clients), cards)
    book.check()
    return SimulatedRun(book, pairs)


_resuming = functools.lru_cache(maxsize=4)(simulated_keys)


def run_of(clients: tuple[int, ...], round: int, exchange: int) -> SimulatedRun:
    """Returns new or stored keys for a run of the cohort `clients`.

    The keys of the last four cohorts are stored in memory. If this cohort's keys were used in
    `exchange` of `round` or later, the keys of all cohorts are dropped, and new ones are drawn.
    """
    run = _resuming(clients)
    if any(ring.next > (round, exchange) for ring in run.rings.values()):
        _resuming.cache_clear()
        run = _resuming(clients)
    return run


class CommitteeChannel:
    """Runs the server and all clients of one sum; rows are sent one by one.

    A client counts as dropped out if it refuses a message or the server refuses its message;
    `faults` lists the reasons.
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
        all_clients = tuple(sorted(session.clients.tolist()))
        self._rows: dict[int, Integers] = {}
        run = run_of(all_clients, session.round, session.exchange)
        terms = RoundTerms(
            session.round,
            session.exchange,
            session.model_hash,
            codec,
            policy,
            limits,
            run.book,
        )
        self.server = CommitteeServer(terms, all_clients)
        self.clients = {
            who: CommitteeClient(
                client_identity(who),
                run.rings[who],
                terms,
                functools.partial(self._rows.pop, who),
            )
            for who in all_clients
        }
        parties = (self.server, self.clients)
        self._delivery = Delivery(wire or Wire(), message_bytes, read_message, *parties, session)
        self.faults = self._delivery.faults

    def send(self, client: int, row: Integers) -> None:
        self._rows[client] = row
        self._delivery.ask({client: self.server.call}, Leaves.BEFORE_MASKING)
        self._rows.pop(client, None)

    def total(self) -> tuple[Integers, int]:
        with self._delivery.accusing():
            for _ in range(2):
                self._delivery.ask(self.server.proceed(), Leaves.BEFORE_UNMASKING)
            words, survivors = self.server.total()
        return self._codec.unwrap(words.astype(np.uint64)), survivors
