"""Who masks with whom, and how many have to stay: from public constants, computed by everybody.

*Complete graph* (Bonawitz et al. 2017): each client shares its secrets with all, itself included,
and t = ceil(threshold n) of them, or two more than may collude, give them back. A server that
follows the protocol learns nothing more. One that lies, telling some that a client survived and
others that it dropped, needs t shares of both kinds; of n clients that each reveal one kind, and
n_C colluding ones that reveal both, it has n + n_C: nothing is learned where 2 t > n + n_C.

*Sparse graph*, for a server that follows the protocol: `privfed.secure.masked.circle`.

*Random graph*, for many clients and a server that lies:
`privfed.secure.masked.random_graph`.
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
    """Those who have to stay to the end: `survivors` of `clients`, each of `degree` neighbours.

    Of each client's holders, who keep shares of its secrets, `threshold` have to stay. Its holders
    are its neighbours, and on the complete graph itself.
    """

    clients: int
    degree: int
    threshold: int
    survivors: int = 0
    independent: ClassVar[bool] = False
    """Whether edges are independent coins: then votes are of all clients, who attest their masks,
    and layers of noise have no proof."""

    @property
    def complete(self) -> bool:
        """Whether everybody is everybody else's neighbour."""
        return self.degree == self.clients - 1

    def holders(self, me: int, near: Iterable[int]) -> tuple[int, ...]:
        """The holders of shares of the secrets of `me`, whose neighbours are `near`."""
        return tuple(sorted((*near, me))) if self.complete else tuple(near)

    def coins(self, seed: bytes, agreed: bytes) -> bytes:
        """What draws the graph of a roster with a `seed` of the server's and the hash `agreed`."""
        return seed

    def neighbours(self, coins: bytes, clients: tuple[int, ...], me: int) -> tuple[int, ...]:
        """The neighbours of `me` among `clients`, in order, as `coins` have drawn them."""
        return circle.neighbours(coins, clients, self.degree, me)

    def voters(self, holders: Iterable[int], survivors: Iterable[int]) -> Set[int]:
        """Whose votes count for a client with these `holders`, all of them survivors."""
        return set(holders)

    def votes(self, least: int) -> int:
        """How many votes a client asks for, where the sum is to be of at least `least`."""
        return self.threshold

    def lying_holders(self, liars: int) -> int:
        """How many of `liars` clients may hold shares of one honest client's secrets.

        All of them on the complete graph; else of nobody's neighbours more, but for 2^-40.
        """
        if self.complete:
            return liars
        more = circle.tail(self.clients, min(liars, self.clients), self.degree)[1:]
        return int(np.count_nonzero(more > 2.0**-circle.SECURE / self.clients))

    @property
    def trials(self) -> tuple[int, float]:
        """Of how many others each is a neighbour, and by a coin of which probability."""
        return self.degree, 1.0

    def withstands_lies(self, corrupt: int) -> bool:
        """Whether a server that lies in every message, with so many clients, opens one sum only."""
        return self.complete and 2 * self.threshold > self.clients + corrupt


@dataclass(frozen=True)
class RandomGraph(Graph):
    """A graph of independent edges, `degree` for each on average, drawn by the roster's hash.

    Of the voters up to `isolated` are in no sum: `survivors` counts so many more than are promised.
    """

    isolated: int = 0
    independent: ClassVar[bool] = True

    def coins(self, seed: bytes, agreed: bytes) -> bytes:
        return random_graph.coins_of(agreed)

    def neighbours(self, coins: bytes, clients: tuple[int, ...], me: int) -> tuple[int, ...]:
        return random_graph.partners(coins, clients, self.degree, me)

    def voters(self, holders: Iterable[int], survivors: Iterable[int]) -> Set[int]:
        return set(survivors)

    def votes(self, least: int) -> int:
        return max(self.survivors, least + self.isolated)

    def lying_holders(self, liars: int) -> int:
        more = random_graph.log_at_least(liars, self.trials[1], np.arange(1, liars + 1))
        return int(np.count_nonzero(more > -circle.SECURE * math.log(2) - math.log(self.clients)))

    @property
    def trials(self) -> tuple[int, float]:
        return self.clients - 1, self.degree / (self.clients - 1)

    def withstands_lies(self, corrupt: int) -> bool:
        return True


def recoverable(
    graph: Graph, near: Mapping[int, tuple[int, ...]], owners: set[int], left: set[int]
) -> bool:
    """Whether enough of all, and of the holders of the secrets of each of `owners`, are `left`."""
    if len(left) < max(graph.survivors, graph.threshold):
        return False
    if graph.complete:
        return True
    return all(sum(other in left for other in near[owner]) >= graph.threshold for owner in owners)


def graph_seed(session: Session) -> bytes:
    """The seed `[32]` of the session's circle, which the server draws."""
    keys = session.streams.at(f"noise/graph/{session.exchange}", session.round)
    return keys.bits(KEY // 8).tobytes()
