"""A committee's sum in one process: every message flows as bytes between the server and clients."""

from __future__ import annotations

import functools
import math

import numpy as np

from privfed.privacy.codec import Codec
from privfed.privacy.integers import Integers
from privfed.secure.committee.client import CommitteeClient
from privfed.secure.committee.messages import message_bytes, read_message
from privfed.secure.committee.policy import CommitteePolicy
from privfed.secure.committee.server import CommitteeServer
from privfed.secure.committee.simulated_run import run_of
from privfed.secure.committee.terms import RoundTerms
from privfed.secure.delivery import Delivery, Wire
from privfed.secure.dropout import Leaves
from privfed.secure.identities import client_identity
from privfed.secure.limits import UNLIMITED, Limits
from privfed.secure.summation import Session


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
        run = run_of(everybody, session.round, session.exchange)
        terms = RoundTerms(
            session.round,
            session.exchange,
            session.model_hash,
            codec,
            policy,
            limits,
            run.book,
        )
        self.server = CommitteeServer(terms, everybody)
        self.clients = {
            who: CommitteeClient(
                client_identity(who),
                run.rings[who],
                terms,
                functools.partial(self._rows.pop, who),
            )
            for who in everybody
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
