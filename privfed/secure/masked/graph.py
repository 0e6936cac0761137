"""Mask graphs and thresholds, which every party computes from public constants.

*Complete graph* (Bonawitz et al. 2017): each client shares its secrets with all clients, including
itself. t of them reconstruct the secrets: at least threshold n, and at least two more than may
collude (`Policy.least_threshold`). A server that follows the protocol learns only the sum. A
malicious server, which reports a client as surviving to some and as dropped out to others, needs t
shares of both kinds. It obtains n + n_C shares, from n clients that reveal one kind each and n_C
colluders that reveal both. So it learns nothing if 2 t > n + n_C.

*Sparse graph*, for a server that follows the protocol: `privfed.secure.masked.circle`.

*Random graph*, for many clients and a malicious server: `privfed.secure.masked.random_graph`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privfed.secure.masked import circle, random_graph
from privfed.secure.primitives import KEY
from privfed.secure.summation import Session


@dataclass(frozen=True)
class Graph:
    """The graph of clients that share masks, and the thresholds of a sum.

    Attributes:
      clients: number of clients of the roster.
      degree: number of neighbours of each client.
      threshold: number of holders of a client's shares that must survive. A client's neighbours
        hold shares of its secrets; on the complete graph the client itself holds one, too.
      survivors: number of clients that must survive.
    """

    clients: int
    degree: int
    threshold: int
    survivors: int = 0
    independent: ClassVar[bool] = False
    """Whether edges are independent random draws. Then all clients vote and attest their masks, and
    layers of noise have no proof.
    """

    @property
    def complete(self) -> bool:
        """Whether every client is a neighbour of every other client."""
        return self.degree == self.clients - 1

    def holders(self, me: int, near: Iterable[int]) -> tuple[int, ...]:
        """Returns the holders of shares of the secrets of `me`: `near`, its neighbours.

        On the complete graph `me` is one of the holders, too.
        """
        return tuple(sorted((*near, me))) if self.complete else tuple(near)

    def edge_key(self, seed: bytes, agreed: bytes) -> bytes:
        """Returns the key that determines the graph's edges.

        Args:
          seed: the server's seed, which is this key.
          agreed: hash of the roster, from which a random graph derives the key instead.
        """
        return seed

    def neighbours(self, edge_key: bytes, clients: tuple[int, ...], me: int) -> tuple[int, ...]:
        """Returns the neighbours of `me` among `clients`, in order, in the graph of `edge_key`."""
        if self.degree == len(clients) - 1:
            return tuple(other for other in clients if other != me)
        return circle.neighbours(edge_key, clients, self.degree, me)

    def voters(self, holders: Iterable[int], survivors: Iterable[int]) -> Set[int]:
        """Returns the clients whose votes count for a client: its `holders`.

        On a random graph these are all `survivors`.
        """
        return set(holders)

    def votes(self, least: int) -> int:
        """Returns the number of votes that a client requires before it unmasks a sum.

        It is `threshold`; on a random graph it is max(`survivors`, `least` + `isolated`), so that
        the sum has at least `least` clients.
        """
        return self.threshold

    def byzantine_holders(self, corrupt: int) -> int:
        """Upper bound on the number of Byzantine clients that hold shares of one honest client.

        `corrupt` clients are Byzantine; on the complete graph all of them hold such shares.
        Otherwise the bound fails for some client with probability at most 2^-40.
        """
        if self.complete:
            return corrupt
        more = circle.tail(self.clients, min(corrupt, self.clients), self.degree)[1:]
        return int(np.count_nonzero(more > 2.0**-circle.SECURE / self.clients))

    @property
    def trials(self) -> tuple[int, float]:
        """The number of a client's possible neighbours, and the probability that each is one."""
        return self.degree, 1.0

    def resists_malicious_server(self, corrupt: int) -> bool:
        """Whether a malicious server with `corrupt` colluding clients can open at most one sum."""
        return self.complete and 2 * self.threshold > self.clients + corrupt


@dataclass(frozen=True)
class RandomGraph(Graph):
    """A graph of independent edges that the roster's hash determines; `degree` is the mean degree.

    Up to `isolated` voters are in no sum, so `survivors` is at least the guaranteed number of
    clients in a sum plus `isolated`.
    """

    isolated: int = 0
    independent: ClassVar[bool] = True

    def edge_key(self, seed: bytes, agreed: bytes) -> bytes:
        return random_graph.edge_key(agreed)

    def neighbours(self, edge_key: bytes, clients: tuple[int, ...], me: int) -> tuple[int, ...]:
        return random_graph.partners(edge_key, clients, self.degree, me)

    def voters(self, holders: Iterable[int], survivors: Iterable[int]) -> Set[int]:
        return set(survivors)

    def votes(self, least: int) -> int:
        return max(self.survivors, least + self.isolated)

    def byzantine_holders(self, corrupt: int) -> int:
        more = random_graph.log_at_least(corrupt, self.trials[1], np.arange(1, corrupt + 1))
        return int(np.count_nonzero(more > -circle.SECURE * math.log(2) - math.log(self.clients)))

    @property
    def trials(self) -> tuple[int, float]:
        return self.clients - 1, self.degree / (self.clients - 1)

    def resists_malicious_server(self, corrupt: int) -> bool:
        return True


def recoverable(
    graph: Graph, near: Mapping[int, tuple[int, ...]], owners: set[int], left: set[int]
) -> bool:
    """Whether the clients in `left` suffice to reconstruct the secrets of all `owners`.

    `left` must have at least `survivors` and `threshold` clients and, unless the graph is complete,
    `threshold` of each owner's neighbours `near`, which hold shares of its secrets.
    """
    if len(left) < max(graph.survivors, graph.threshold):
        return False
    if graph.complete:
        return True
    return all(sum(other in left for other in near[owner]) >= graph.threshold for owner in owners)


def graph_seed(session: Session) -> bytes:
    """Returns the server's seed `[32]` for the session.

    A sparse graph is drawn by this seed (`privfed.secure.masked.circle`).
    """
    keys = session.streams.at(f"noise/graph/{session.exchange}", session.round)
    return keys.bits(KEY // 8).tobytes()
