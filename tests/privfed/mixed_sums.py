"""Masked sums by our clients and by those of the second implementation, with their noise."""

from dataclasses import astuple, dataclass, field, replace

import numpy as np
import second_client
from masked_sums import codec, rows, session
from second_client import Refusal, SecondClient

from privfed.secure.identities import client_directory, client_identity
from privfed.secure.limits import Limits
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.layered_noise import ClientNoise
from privfed.secure.masked.messages.wire import decode, encode
from privfed.secure.masked.policy import Expected, Policy
from privfed.secure.masked.server import MaskingServer
from privfed.secure.summation import Aborted

CLIENTS = tuple(range(3, 83, 5))
SECONDS = (8, 13, 28, 33, 58)
ROWS = 2
"""The step in which rows are sent."""


@dataclass(frozen=True)
class Recorded(second_client.Layers):
    """Layers that keep the sampled noise: the base, and each layer."""

    drawn: list = field(default_factory=list, compare=False)

    def rows(self, n, seeds, length):
        self.drawn[:] = super().rows(n, seeds, length)
        return self.drawn


def settings(policy, limits, layers=None):
    """Returns the settings from which the second client builds a graph; sparse ones are given."""

    def given(n):
        graph = replace(policy, layered=False).graph(n)
        if graph.complete:
            return None
        quorum, isolated = (graph.survivors, graph.isolated) if graph.independent else (0, 0)
        return second_client.Given(graph.degree, graph.threshold, quorum, isolated)

    return second_client.Settings(
        policy.threshold,
        policy.colluders,
        policy.threat == "malicious",
        given,
        neighbours=policy.neighbours,
        admitted=policy.admitted,
        minimum=limits.minimum,
        capacity=limits.capacity,
        tolerance=limits.tolerance,
        size=policy.size,
        layers=layers,
    )


def shape_of(graph, limits, layers=None):
    """Returns one of our graphs in the second client's terms."""
    n, least = graph.clients, limits.least(graph.clients)
    fewest = max(graph.survivors, least, n - layers.most_dropouts(n) if layers else 0)
    about = (graph.degree, graph.threshold, fewest, graph.votes(least), graph.independent)
    return second_client.Shape(n, *about)


class Table:
    """A session of clients of both kinds, as bytes, and the noise that each of them sampled."""

    def __init__(
        self, policy, bits=20, layers=None, seconds=SECONDS, everybody=CLIENTS, limits=None
    ):
        self.everybody, self.limits = everybody, limits or Limits(50, 7)
        self.encoder, self.policy, self.layers = codec(11, bits), policy, layers
        self.expected = Expected(4, 1, b"h" * 32, self.encoder)
        self.directory = client_directory(everybody)
        self.rows = dict(zip(everybody, rows(self.encoder, len(everybody)), strict=True))
        self.invitation = self.expected.invitation(b"s" * 32, policy, self.limits, layers)
        about = (everybody, self.directory, policy, b"g" * 32, self.limits, layers)
        self.server, self.drawn, self.faults = MaskingServer(self.invitation, *about), {}, []
        self.clients = {
            who: (self._second if who in seconds else self._first)(who, row)
            for who, row in self.rows.items()
        }

    def _first(self, who, row):
        noise = None
        if self.layers:
            count = len(self.everybody)
            noise = ClientNoise(self.layers, session(count).layer_keys(who))
            self.drawn[who] = lambda stay: noise.draw(count, noise.seeds(count)[:stay], len(row))
        us = (self.directory, self.policy, self.expected, lambda: row, self.limits, noise)
        client = MaskingClient(who, client_identity(who), *us)
        return lambda data: encode(client.handle(decode(data)))

    def _second(self, who, row):
        layers = self.layers
        if layers:
            layers = Recorded(*astuple(layers))
            self.drawn[who] = lambda stay: np.sum(layers.drawn[: 1 + stay], axis=0)
        terms = self.invitation.body()[32:]
        task = second_client.Sum(terms, self.directory, self._shape, layers)
        return SecondClient(who, client_identity(who), task, row.tolist()).handle

    def _shape(self, n):
        if isinstance(self.policy, Policy):
            return settings(self.policy, self.limits, self.layers).shape(n)
        return shape_of(self.policy.graph(n), self.limits, self.layers)

    def play(self, gone=(), change=lambda who, message: message):
        """Runs all five steps: clients in `gone` are silent, and `change` replaces messages."""
        gone = dict(gone)
        sent = dict.fromkeys(self.everybody, self.invitation)
        for step in range(5):
            for who, message in sent.items():
                if step < gone.get(who, 5):
                    self._ask(who, change(who, message))
            sent = self.server.proceed() if step < 4 else {}
        return self

    def _ask(self, who, message):
        try:
            self.server.handle(who, decode(self.clients[who](encode(message))))
        except (Aborted, Refusal) as refused:
            self.faults.append(f"{who}: {refused}")

    def sum(self, gone=(), garbled=0):
        """Returns the correct sum of the clients that sent a row, with the noise that remains."""
        here = [who for who in self.everybody if dict(gone).get(who, 5) > ROWS]
        total = sum(self.rows[who] for who in here)
        if self.layers:
            count = len(self.everybody)
            keeping = self.layers.keeping(count, count - len(here) + garbled, here)
            total = total + sum(self.drawn[who](keeping[who]) for who in here)
        return (total % 2**self.encoder.bits).tolist(), len(here)

    def total(self):
        words, survivors = self.server.total()
        return words.tolist(), survivors
