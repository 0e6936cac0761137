"""Who masks with whom, and how many have to stay: from public constants, computed by everybody.

*Complete graph* (Bonawitz et al. 2017): each client shares its secrets with all, itself included,
and t = ceil(threshold n) of them, or two more than may collude, give them back. A server that
follows the protocol learns nothing more. One that lies, telling some that a client survived and
others that it dropped, needs t shares of both kinds; of n clients that each reveal one kind, and
n_C colluding ones that reveal both, it has n + n_C: nothing is learned where 2 t > n + n_C.

*Sparse graph* (SecAgg+, Bell et al. 2020, section 3), for a server that follows the protocol: each
client has the k nearest others on a random circle as neighbours. k is the smallest even number with
which, but for a probability of 2^-40, honest survivors stay connected and no honest client has t or
more colluding neighbours, and, but for 2^-20, every client keeps t neighbours that stay.

*Random graph*, for many clients and a server that lies: `privfed.secure.masked.random_graph`.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from privfed.secure.masked import random_graph
from privfed.secure.primitives import KEY
from privfed.secure.summation import Aborted, Session

COMPLETE = 200
"""The most clients with which the graph is always complete."""
_SECURE, _CORRECT = 40, 20
"""The sigma and eta of Bell et al., in bits."""
_EXACT = 1e-9
"""A tolerance that shields floor and ceil from the last bits of a product."""


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
        return neighbours(coins, clients, self.degree, me)

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
        more = _tail(self.clients, min(liars, self.clients), self.degree)[1:]
        return int(np.count_nonzero(more > 2.0**-_SECURE / self.clients))

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
        return int(np.count_nonzero(more > -_SECURE * math.log(2) - math.log(self.clients)))

    @property
    def trials(self) -> tuple[int, float]:
        return self.clients - 1, self.degree / (self.clients - 1)

    def withstands_lies(self, corrupt: int) -> bool:
        return True


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
    if sparse and (graph := sparsest(clients, corrupt, lost, policy.neighbours)):
        return graph
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


def sparsest(clients: int, corrupt: int, lost: int, degree: int = 0) -> Graph | None:
    """The sparsest graph that keeps the promises; None where the complete one is no larger.

    With a `degree`, that one. Raises `Aborted` where it does not keep them.
    """
    least, most = (degree, degree) if degree else (2, clients - 2)
    if degree >= clients - 1:
        return None
    while least < most:  # what k keeps, k + 2 keeps: safer and connected at least as likely
        middle = (least + most) // 4 * 2
        least, most = (
            (least, middle) if _keeps(clients, corrupt, lost, middle) else (middle + 2, most)
        )
    threshold = _keeps(clients, corrupt, lost, least)
    if threshold is None and degree:
        raise Aborted(f"secure.neighbours = {degree} are too few for these clients and colluders")
    return Graph(clients, least, threshold, clients - lost) if threshold else None


def _keeps(clients: int, corrupt: int, lost: int, degree: int) -> int | None:
    """The threshold with which `degree` neighbours keep the promises; None where there is none."""
    if degree < 2 or degree % 2 or degree > clients - 2:
        return None
    if _log2_cut(clients, corrupt + lost, degree) >= -(_SECURE + 1):
        return None
    more = _tail(clients, corrupt, degree)[1:]
    secure = np.flatnonzero(more <= 2.0 ** -(_SECURE + 1) / clients)
    fewer = _tail(clients, lost, degree)[::-1]
    correct = np.flatnonzero(fewer <= 2.0**-_CORRECT / clients)
    if not len(secure) or secure[0] >= correct[-1]:
        return None
    return max(int(secure[0]) + 1, 2)


def _tail(clients: int, marked: int, degree: int) -> NDArray[np.float64]:
    """P[of `degree` clients, drawn without replacement, j or more are marked], j = 0 ... k + 1."""
    others = clients - marked
    least, most = max(0, degree - others), min(degree, marked)
    first = _log_choose(marked, least) + _log_choose(others, degree - least)
    j = np.arange(least, most)
    rises = np.log((marked - j) * (degree - j) / ((j + 1) * (others - degree + j + 1)))
    chance = np.zeros(degree + 1)
    logs = first - _log_choose(clients, degree) + np.append(0.0, np.cumsum(rises))
    chance[least : most + 1] = np.exp(logs)
    return np.append(np.cumsum(chance[::-1])[::-1], 0.0)


def _log_choose(n: int, k: int) -> float:
    """The logarithm of n choose k, for k from 0 to n."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _log2_cut(clients: int, gone: int, degree: int) -> float:
    """log2 of the probability that honest survivors are cut in two (Bell et al., lemma 3.7)."""
    n, k = clients, degree
    if gone < k:
        return -math.inf
    ways = math.log(n * (n - k - 1) / 2) if n > k + 1 else -math.inf
    above = math.lgamma(gone + 1) + math.lgamma(n - k + 1)
    below = math.lgamma(n + 1) + math.lgamma(gone - k + 1)
    return (ways + above - below) / math.log(2)


def neighbours(seed: bytes, clients: tuple[int, ...], degree: int, me: int) -> tuple[int, ...]:
    """The neighbours of `me`, in order: the `degree` nearest on a circle drawn by `seed`."""
    if degree == len(clients) - 1:
        return tuple(other for other in clients if other != me)
    circle, places = _circle(seed, clients)
    at = places[me]
    reach = range(1, degree // 2 + 1)
    near = [circle[(at + sign * step) % len(circle)] for step in reach for sign in (-1, 1)]
    return tuple(sorted(near))


@functools.lru_cache(maxsize=2)
def _circle(seed: bytes, clients: tuple[int, ...]) -> tuple[tuple[int, ...], dict[int, int]]:
    """Clients in the order of their hashes, and the place of each."""
    circle = tuple(sorted(clients, key=functools.partial(_place, seed)))
    return circle, {client: at for at, client in enumerate(circle)}


def _place(seed: bytes, client: int) -> bytes:
    """The place of a client on the circle that `seed` draws."""
    return hashlib.sha256(seed + client.to_bytes(8, "little")).digest()


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
