"""What sites insist on: thresholds in whole sites, counted of the pinned directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from privfed.secure.masked.graphs.graph import Graph
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
