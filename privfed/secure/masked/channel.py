"""A masked sum in one process: every message flows as bytes between the server and its clients."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

from privfed.privacy.codec import Codec
from privfed.privacy.integers import Integers
from privfed.privacy.noise.shares import Layers
from privfed.secure.delivery import Delivery, Wire
from privfed.secure.dropout import Leaves
from privfed.secure.identities import client_directory, client_identity
from privfed.secure.limits import UNLIMITED, Limits
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.expected import Expected, Insists
from privfed.secure.masked.graphs.graph import graph_seed
from privfed.secure.masked.layered_noise import ClientNoise
from privfed.secure.masked.messages.wire import FromServer, decode, encode
from privfed.secure.masked.server import MaskingServer
from privfed.secure.primitives import random_key
from privfed.secure.summation import Session


class MaskedChannel:
    """A server and its clients, who share keys at once and send their rows one by one.

    Who is refused by name, or refuses, counts as dropped; `faults` lists the names.
    """

    largest = math.inf

    def __init__(
        self,
        session: Session,
        codec: Codec,
        policy: Insists,
        limits: Limits = UNLIMITED,
        layers: Layers | None = None,
        wire: Wire | None = None,
    ) -> None:
        self._codec = codec
        everybody = tuple(session.clients.tolist())
        self._rows: dict[int, Integers] = {}
        directory = client_directory(everybody)
        expected = Expected(session.round, session.exchange, session.model_hash, codec)
        self.server = MaskingServer(
            expected.invitation(bytes(random_key()), policy, limits, layers),
            everybody,
            directory,
            policy,
            graph_seed(session),
            limits,
            layers,
        )
        self.clients = {
            who: MaskingClient(
                who,
                client_identity(who),
                directory,
                policy,
                expected,
                functools.partial(self._rows.pop, who),
                limits,
                ClientNoise(layers, session.layer_keys(who)) if layers else None,
            )
            for who in everybody
        }
        parties = (self.server, self.clients)
        self._delivery = Delivery(wire or Wire(), encode, decode, *parties, session)
        self.faults = self._delivery.faults
        self._delivery.ask(dict.fromkeys(everybody, self.server.invitation), 0)
        self._delivery.ask(self._proceed(), Leaves.BEFORE_SHARING)
        self._inboxes = dict(self._proceed())

    def send(self, client: int, row: Integers) -> None:
        self._rows[client] = row
        del row  # the client takes it out, and then it is nobody's any more
        if inbox := self._inboxes.pop(client, None):
            self._delivery.ask({client: inbox}, Leaves.BEFORE_MASKING)
        self._rows.pop(client, None)

    def total(self) -> tuple[Integers, int]:
        self._delivery.ask(self._proceed(), Leaves.BEFORE_UNMASKING)
        self._delivery.ask(self._proceed(), Leaves.BEFORE_UNMASKING)
        with self._delivery.accusing():
            words, survivors = self.server.total()
        return self._codec.unwrap(words), survivors

    def _proceed(self) -> Mapping[int, FromServer]:
        with self._delivery.accusing():
            return self.server.proceed()
