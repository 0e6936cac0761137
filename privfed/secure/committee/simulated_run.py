"""The keys of a run's clients, where a simulation plays all of them in one process.

A deployment has one book, of all clients of a run, and agrees on secrets once. Here each cohort has
a run of its own, with cards of its own: so a cohort that was not met before agrees anew. The times
of simulated rounds have that in them; estimates of a round's operations and bytes do not.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

from privfed.secure.committee.key_book import KeyBook, KeyCard
from privfed.secure.committee.keyring import Keyring
from privfed.secure.identities import client_directory, client_identity
from privfed.secure.primitives import KEY, KeyPair


@dataclass(frozen=True)
class SimulatedRun:
    """The `book` of a run, which all of its clients have checked, and the key `pairs` of all."""

    book: KeyBook
    pairs: dict[int, KeyPair]

    @functools.cached_property
    def rings(self) -> dict[int, Keyring]:
        """What each client goes on with from round to round."""
        return {client: self.ring(client) for client in self.book.cards}

    def ring(self, client: int) -> Keyring:
        """A ring of this client's that has taken no exchange."""
        return Keyring(self.pairs[client], self.book.cards[client], self.book)


def simulated_keys(clients: tuple[int, ...], name: bytes | None = None) -> SimulatedRun:
    """A new run of `clients`, with this `name` (drawn, unless given)."""
    name = name or os.urandom(KEY)
    pairs = {client: KeyPair(os.urandom(KEY)) for client in clients}
    cards = {
        client: KeyCard(name, client, pair.public, os.urandom(KEY)).signed(client_identity(client))
        for client, pair in pairs.items()
    }
    book = KeyBook(name, client_directory(clients), cards)
    book.check()
    return SimulatedRun(book, pairs)


_going_on = functools.lru_cache(maxsize=4)(simulated_keys)


def run_of(clients: tuple[int, ...], round: int, exchange: int) -> SimulatedRun:
    """The run that `clients` are in: the one of earlier exchanges, or a new one.

    A simulation that goes back to an exchange is another run.
    """
    run = _going_on(clients)
    if any(ring.next > (round, exchange) for ring in run.rings.values()):
        _going_on.cache_clear()
        run = _going_on(clients)
    return run
