"""A masked sum in one process: every message flows as bytes between the server and its clients."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from privfed.privacy.codec import Codec
from privfed.privacy.integers import Integers
from privfed.privacy.noise.shares import Layers
from privfed.secure.dropout import Leaves
from privfed.secure.identities import client_directory, client_identity
from privfed.secure.limits import UNLIMITED, Limits
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.expected import Expected, Insists
from privfed.secure.masked.graph import graph_seed
from privfed.secure.masked.layered_noise import ClientNoise
from privfed.secure.masked.messages.wire import FromServer, Message, decode, encode
from privfed.secure.masked.server import MaskingServer
from privfed.secure.primitives import random_key
from privfed.secure.summation import Aborted, Session


class Wire:
    """Carries bytes; a test's wire may change or lose them."""

    def carry(self, client: int, data: bytes, upward: bool) -> bytes | None:
        """What arrives of `data` from `client` to the server (`upward`), or the other way.

        None where it is lost.
        """
        return data


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
        self._codec, self._wire = codec, wire or Wire()
        self._accuse = session.accuse
        everybody = tuple(session.clients.tolist())
        leaves = session.leaves.tolist() or [Leaves.NEVER] * len(everybody)
        self._leaves = dict(zip(everybody, leaves, strict=True))
        self._rows: dict[int, Integers] = {}
        self.faults: list[str] = []
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
        self._ask(dict.fromkeys(everybody, self.server.invitation), 0)
        self._ask(self._proceed(), Leaves.BEFORE_SHARING)
        self._inboxes = dict(self._proceed())

    def send(self, client: int, row: Integers) -> None:
        self._rows[client] = row
        if inbox := self._inboxes.pop(client, None):
            self._ask({client: inbox}, Leaves.BEFORE_MASKING)
        self._rows.pop(client, None)

    def total(self) -> tuple[Integers, int]:
        self._ask(self._proceed(), Leaves.BEFORE_UNMASKING)
        self._ask(self._proceed(), Leaves.BEFORE_UNMASKING)
        with self._naming_faults():
            words, survivors = self.server.total()
        return self._codec.unwrap(words.astype(np.uint64)), survivors

    def _ask(self, sent: Mapping[int, FromServer], stage: int) -> None:
        """Deliver messages to who has not left by `stage`, and their answers to the server."""
        for client, message in sent.items():
            if 0 < self._leaves[client] <= stage:
                continue
            try:
                if (arrived := self._carry(client, message, upward=False)) is None:
                    continue
                answer = self._carry(client, self.clients[client].handle(arrived), upward=True)
                if answer is not None:
                    self.server.handle(client, answer)
            except Aborted as refused:
                self.faults.append(str(refused))

    def _carry(self, client: int, message: Message, upward: bool) -> Message | None:
        data = self._wire.carry(client, encode(message), upward)
        return None if data is None else decode(data)

    def _proceed(self) -> Mapping[int, FromServer]:
        with self._naming_faults():
            return self.server.proceed()

    @contextmanager
    def _naming_faults(self) -> Iterator[None]:
        try:
            yield
        except Aborted as aborted:
            first = f" (first refused: {self.faults[0]})" if self.faults else ""
            named = Aborted(f"{aborted}{first}")
            named.culprits = aborted.culprits
            raise named from aborted
        finally:
            for culprit in self.server.culprits:
                self._accuse(culprit)
