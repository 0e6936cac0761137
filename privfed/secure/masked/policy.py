"""What a client of masked sums insists on, whatever the server says: which graph a cohort has."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal

from privfed.secure.masked import circle, random_graph
from privfed.secure.masked.graph import Graph, RandomGraph
from privfed.secure.summation import Aborted


def least_threshold(sites: int, colluders: int, threat: Literal["curious", "lying"]) -> int:
    """The fewest shares t that open a secret: t > k, and 2 t > n + k where the server may lie."""
    return (sites + colluders) // 2 + 1 if threat == "lying" else colluders + 1


@dataclass(frozen=True)
class SitePolicy:
    """A policy (`privfed.secure.masked.policy.Policy`) of pinned sites, all numbers whole sites.

    Of `sites` at least `minimum` stay, and up to `colluders` work with the server. `threshold`
    shares give a secret back. All three hold of the pinned sites, never of a roster that the server
    sends: one with fewer sites is one with more of them missing (PRIVACY, section 9.1, S5).
    """

    sites: int
    minimum: int
    threshold: int
    colluders: int
    threat: Literal["curious", "lying"]

    @property
    def smallest(self) -> int:
        """The smallest roster that is not refused."""
        return self.minimum

    def corrupt(self, clients: int) -> int:
        """How many sites may collude with the server."""
        return self.colluders

    def counted_of(self, clients: int) -> int:
        """How many parties are expected, of whom a roster has `clients`: all sites."""
        return self.sites

    def graph(self, clients: int) -> Graph:
        """The complete graph on a roster of so many sites. Raises `Aborted` for too few."""
        if not self.minimum <= clients <= self.sites:
            raise Aborted("too few sites, or more than there are")
        return Graph(clients, clients - 1, self.threshold, self.minimum)

    def withstands_lies(self, graph: Graph) -> bool:
        """Whether a server that lies about who dropped still learns nothing but a sum."""
        return 2 * self.threshold > self.sites + self.colluders


COMPLETE = 200
"""The most clients with which the graph is always complete."""
_EXACT = 1e-9
"""A tolerance that shields floor and ceil from the last bits of a product."""


@dataclass(frozen=True)
class Policy:
    """What each client insists on, whatever the server says.

    `threshold` is the fraction of a cohort that has to stay, `colluders` the largest fraction of it
    that may collude with the server. `neighbours` 0 follows from the cohort. `size` is the cohort
    that is expected, a public constant: colluders are counted of no fewer, and a cohort of less
    than `admitted` (0: `threshold` of the expected one) is refused, or a server could make up a
    small one. With noise in layers (`layered`) no graph is a random one.
    """

    threshold: float
    colluders: float
    threat: Literal["curious", "lying"]
    neighbours: int = 0
    size: int = 0
    admitted: int = 0
    layered: bool = False

    @property
    def smallest(self) -> int:
        """The smallest cohort that is not refused."""
        return max(2, self.admitted or math.ceil(self.threshold * self.size - _EXACT))

    def counted_of(self, clients: int) -> int:
        """How many parties are expected, of whom a roster has `clients`: nobody else."""
        return clients

    def corrupt(self, clients: int) -> int:
        """How many of `clients` may collude with the server."""
        return math.floor(self.colluders * max(clients, self.size) + _EXACT)

    def graph(self, clients: int) -> Graph:
        """The graph for `clients`. Raises `Aborted` where none keeps what is promised."""
        return _graph(self, clients)

    def withstands_lies(self, graph: Graph) -> bool:
        """Whether a server that lies about who dropped still learns nothing but a sum."""
        return graph.withstands_lies(self.corrupt(graph.clients))

    def least_threshold(self, clients: int) -> int:
        """How many of `clients` have to stay on the complete graph.

        As configured; two more than may collude, since a client holds a share of its own and one
        other honest client at least has to help; and where the fractions promise 2 t > n + k, so
        many that it holds of whole clients, however small an admitted cohort is.
        """
        corrupt = self.corrupt(clients)
        least = max(clients - self.lost(clients), corrupt + 2)
        promised = 2 * self.threshold > 1 + self.colluders
        return max(least, (clients + corrupt) // 2 + 1) if promised else least

    def lost(self, clients: int) -> int:
        """How many of `clients` may drop out."""
        return math.floor((1 - self.threshold) * clients + _EXACT)


@functools.lru_cache(maxsize=4096)
def _graph(policy: Policy, clients: int) -> Graph:
    if clients < policy.smallest:
        raise Aborted("too few clients for the cohort that was expected")
    corrupt = policy.corrupt(clients)
    lost = policy.lost(clients)
    sparse = policy.threat == "curious" and (policy.neighbours or clients > COMPLETE)
    if sparse and (circular := circle.sparsest_circle(clients, corrupt, lost, policy.neighbours)):
        return Graph(clients, *circular, clients - lost)
    drawn = policy.threat == "lying" and not policy.layered and clients > COMPLETE
    if drawn and (shape := random_graph.sparsest_shape(clients, corrupt, lost)):
        votes, apart = shape.votes, shape.isolated
        return RandomGraph(clients, shape.degree, shape.threshold, votes, isolated=apart)
    graph = Graph(clients, clients - 1, policy.least_threshold(clients), clients - lost)
    if graph.threshold > clients:
        raise Aborted("too few clients for so many that may collude")
    if policy.threat == "lying" and not policy.withstands_lies(graph):
        raise Aborted("too few clients for a threshold that withstands a lying server")
    return graph
