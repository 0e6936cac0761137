"""A masked sum in one process: messages pass as bytes between the server and its clients."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

from privfed.privacy.codec import Codec
from privfed.privacy.integers import Integers
from privfed.privacy.noise.shares import Layers
from privfed.secure.channel import Delivery, Wire
from privfed.secure.identities import client_directory, client_identity
from privfed.secure.limits import UNLIMITED, Leaves, Limits
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.graph import Graph, graph_seed
from privfed.secure.masked.layered_noise import ClientNoise
from privfed.secure.masked.messages.wire import FromServer, decode, encode
from privfed.secure.masked.policy import Expected, MaskingPolicy
from privfed.secure.masked.server import MaskingServer
from privfed.secure.operations import Operations
from privfed.secure.primitives import Expander, random_key
from privfed.secure.summation import Session


def masked_operations(graph: Graph, codec: Codec, layers: int) -> Operations:
    """Returns the operations of all `graph.clients` and of the server, without dropouts.

    *A client* with k neighbours agrees with each on a key for shares and on one for masks. It
    derives one key for each direction of a channel, for each mask and for its self-mask. It shares
    2 + `layers` secrets; each share costs t products, for a threshold t, and k + 1 holders are
    counted (on incomplete graphs there are k). It expands k + 1 masks, a base and `layers` layers
    of noise. It signs five messages, and on a random graph also an attestation. *The server* tests
    both keys of each client, checks the signatures, reconstructs the client's seed from t shares
    (with layers, two secrets), and removes the client's mask and layers. The 2 t (t - 1) products
    for the Lagrange weights of a reconstruction are computed once on the complete graph, otherwise
    for each client. In one process clients check no other signatures, and each pair computes its
    agreement once.
    """
    n, k, t = graph.clients, graph.degree, graph.threshold
    secrets, opened = 2 + layers, 2 if layers else 1
    size = codec.length * Expander(1, codec.bits).word.itemsize
    weights = (1 if graph.complete else n) * 2 * t * (t - 1)
    return Operations(
        masked=n * (k + 2) * size,
        packed=n * Expander(codec.length, codec.bits).size,
        drawn=n * codec.length * (1 + 2 * layers if layers else 0),
        agreements=n * (k + 2),
        derived=n * (3 * k + 2),
        sealed=n * 2 * k,
        signatures=n * (12 if graph.independent else 10),
        products=n * (secrets * (k + 1) + opened) * t + weights,
    )


class MaskedChannel:
    """Runs the server and all clients of one sum, which agree on keys when it is constructed.

    Rows are then sent one by one. A client counts as dropped out if it refuses a message or the
    server refuses its message; `faults` lists the reasons.
    """

    largest = math.inf

    def __init__(
        self,
        session: Session,
        codec: Codec,
        policy: MaskingPolicy,
        limits: Limits = UNLIMITED,
        layers: Layers | None = None,
        wire: Wire | None = None,
    ) -> None:
        self._codec = codec
        all_clients = tuple(session.clients.tolist())
        self._rows: dict[int, Integers] = {}
        directory = client_directory(all_clients)
        expected = Expected(session.round, session.exchange, session.model_hash, codec)
        self.server = MaskingServer(
            expected.invitation(bytes(random_key()), policy, limits, layers),
            all_clients,
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
            for who in all_clients
        }
        parties = (self.server, self.clients)
        self._delivery = Delivery(wire or Wire(), encode, decode, *parties, session)
        self.faults = self._delivery.faults
        self._delivery.ask(dict.fromkeys(all_clients, self.server.invitation), 0)
        self._delivery.ask(self._proceed(), Leaves.BEFORE_SHARING)
        self._inboxes = dict(self._proceed())

    def send(self, client: int, row: Integers) -> None:
        self._rows[client] = row
        del row  # the client then holds the only reference to the row
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
