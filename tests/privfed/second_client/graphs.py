"""The graph of a roster, the required number of survivors, and the neighbours of a client."""

from collections.abc import Callable
from dataclasses import dataclass

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from second_client.encoding import LABELS, require, sha256, u64
from second_client.noise import Layers, ceil, floor


@dataclass(frozen=True)
class Given:
    """Solved values; for a random graph also `quorum` and `isolated` (Q and z)."""

    degree: int
    threshold: int
    quorum: int = 0
    isolated: int = 0


@dataclass(frozen=True)
class Shape:
    """The properties of a graph that both sides know before it is sampled."""

    clients: int
    degree: int
    threshold: int
    fewest: int
    votes: int
    random: bool = False

    @property
    def complete(self):
        return self.degree == self.clients - 1

    def neighbours(self, seed, agreed, clients, me):
        if self.random:
            return on_random_graph(edge_key(agreed), clients, self.degree, me)
        if self.complete:
            return [client for client in clients if client != me]
        return on_circle(seed, clients, self.degree, me)


@dataclass(frozen=True)
class Settings:
    """The settings that determine a graph, and a table of solved values by n."""

    threshold: float
    colluders: float
    lying: bool
    given: Callable[[int], Given | None]
    neighbours: int = 0
    admitted: int = 0
    minimum: int = 0
    capacity: int = 1 << 31
    tolerance: float = 1.0
    size: int = 0
    layers: Layers | None = None

    def shape(self, n):
        """Returns the graph of n clients; refuses if there is none."""
        least = self.admitted or ceil(self.threshold * self.size)
        require(max(2, least) <= n <= self.capacity, "wrong roster")
        stay = n - floor((1 - self.threshold) * n)
        fewest = max(2, self.minimum, n - floor(self.tolerance * n))
        if self.layers:
            fewest = max(fewest, n - self.layers.most_dropouts(n))
        given = self.given(n) if self._sparse(n) else None
        if given and self.lying:
            votes = max(given.quorum, fewest + given.isolated)
            fewest = max(given.quorum, fewest)
            return Shape(n, given.degree, given.threshold, fewest, votes, random=True)
        fewest = max(stay, fewest)
        if given:
            return Shape(n, given.degree, given.threshold, fewest, given.threshold)
        threshold = self._complete(n, stay)
        return Shape(n, n - 1, threshold, fewest, threshold)

    def _sparse(self, n):
        if self.lying:
            return n > 200 and not self.layers
        return n > 200 or self.neighbours

    def _complete(self, n, stay):
        """Returns the threshold on the complete graph."""
        collude = floor(self.colluders * max(n, self.size))
        threshold = max(stay, collude + 2)
        if 2 * self.threshold > 1 + self.colluders:
            threshold = max(threshold, (n + collude) // 2 + 1)
        require(threshold <= n, "wrong roster")
        require(not self.lying or 2 * threshold > n + collude, "wrong roster")
        return threshold


def on_circle(seed, clients, degree, me):
    circle = sorted(clients, key=lambda client: sha256(seed, u64(client)))
    at, half = circle.index(me), degree // 2
    return sorted(circle[(at + step) % len(circle)] for step in range(-half, half + 1) if step)


def edge_key(agreed):
    return sha256(LABELS["graph"], agreed)


def on_random_graph(key, clients, degree, me):
    cipher = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    limit = (degree << 64) // (len(clients) - 1)

    def tossed(other):
        block = cipher.update(u64(min(me, other), max(me, other)))
        return int.from_bytes(block[:8], "little") < limit

    return [other for other in clients if other != me and tossed(other)]
