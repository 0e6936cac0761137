"""A sparse graph of independent edges, for a malicious server.

Each two of n clients are neighbours with probability p = degree / (n - 1). The draw is a
pseudorandom function of both, keyed by a hash of the roster that clients agree to (such edges are
Flamingo's, Ma et al. 2023, whose seed is agreed on in advance). So a party that assembles the
roster, or sends its keys last, can choose a graph only by trial: each roster has its own graph,
drawn afresh if SHA-256 is a random oracle and AES an ideal cipher. The guarantees fail with
probability 2^-40 over 2^80 trials: `_SECURE` bits for each. (On the circle of Bell et al. 2020 a
server can open the sum of an arc by claiming that the clients next to its two ends dropped out.)

Of n clients k collude, chosen before the graph is drawn; the other h = n - k are honest. t of a
client's neighbours reconstruct its secrets, and T votes of all clients are needed to open any: at
least v = T - k of honest ones, the set V. `privfed.secure.masked` proves that a client in an opened
sum has t neighbours among colluders and the clients of V in it, and that a voter in it has no
neighbour in V outside it (*closed*). The following terms bound the failure probability of one
graph, by the union over all sets and Chernoff's inequality. Each edge is in one factor only, and
X_q(m) is binomial with m trials of probability q.

1. An honest client has t colluding neighbours: h P[X_p(k) >= t].
2. Some a clients of V, at most |V| / 2, are closed: they have a t ends of edges among themselves
   and to colluders, and none of the other |V| - a >= max(a, v - a) has an edge to them:
   C(h, a) P[2 X_p(a (a - 1) / 2) + X_p(a k) >= a t] P[X_q(h - a) >= max(a, v - a)], q = (1 - p)^a.
3. More than z clients of V, w <= |V| / 2 of them, have no edge to the others, and are in no sum:
   C(h, w) P[X_q(h - w) >= max(w, v - w)], q = (1 - p)^w, for all w > z.

So one sum is opened, of at least T - z - k honest clients. T exceeds the guaranteed number by z.
All terms hold for any larger V, and also if fewer than k clients collude, with honest clients
counted as colluders. Edges come from distinct blocks of a permutation, so they are not independent;
this costs a factor below 1 + 2^-70.
"""

from __future__ import annotations

import functools
import hashlib
import math
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import ArrayLike, NDArray

_SECURE = 120
"""-log2 of the probability that a graph violates its guarantees."""
_CORRECT = 20
"""-log2 of the probability that some client keeps too few neighbours to remove its masks."""
_PARTS = 2
"""Additional bits for each of the three events, so that their union has `_SECURE` bits."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Shape:
    """The degree and the thresholds of a random graph.

    Attributes:
      degree: average number of neighbours.
      threshold: neighbours of a client that reconstruct its secrets.
      votes: number of votes that open a secret.
      isolated: upper bound on the voters that are in no sum.
    """

    degree: int
    threshold: int
    votes: int
    isolated: int


@functools.lru_cache(maxsize=4096)
def sparsest_shape(clients: int, corrupt: int, lost: int) -> Shape | None:
    """Finds the sparsest random graph that gives the guarantees.

    Args:
      clients: clients of the roster.
      corrupt: clients that may collude.
      lost: clients that may drop out.

    Returns:
      The shape; None if it would need more than half of the edges of the complete graph, or more
      votes than there are clients, so that the complete graph needs less.
    """
    least, most = 1, clients // 2
    if not (shape := _keeps(clients, corrupt, lost, most)):
        return None
    while least < most:
        middle = (least + most) // 2
        if thinner := _keeps(clients, corrupt, lost, middle):
            most, shape = middle, thinner
        else:
            least = middle + 1
    return shape


def _keeps(clients: int, corrupt: int, lost: int, degree: int) -> Shape | None:
    """Returns the shape of mean degree `degree`; None if it does not give the guarantees."""
    p, most = degree / (clients - 1), -(_SECURE + _PARTS) * math.log(2)
    threshold = _least_left(clients, lost, p)
    if not threshold or log_surrounded(clients, corrupt, p, threshold) > most:
        return None
    promised = clients - lost
    agreeing = (clients + corrupt) // 2 + 1  # any two such sets of votes share an honest voter
    apart = log_isolated(clients, corrupt, max(promised, agreeing), p)
    enough = np.append(np.logaddexp.accumulate(apart[::-1])[::-1], -math.inf) <= most
    isolated = int(np.argmax(enough))
    votes = max(promised + isolated, agreeing)
    if votes > clients:
        return None
    split = log_split(clients, corrupt, votes, p, threshold)
    if float(np.logaddexp.reduce(split)) > most:
        return None
    return Shape(degree, threshold, votes, isolated)


def _least_left(clients: int, lost: int, p: float) -> int:
    """Returns the number of neighbours that all clients keep, except with probability 2^-20.

    `lost` clients drop out, and each edge exists with probability `p`.
    """
    others = clients - 1 - lost
    counts = np.arange(1, others + 1)
    fewer = log_at_least(others, 1 - p, others - counts + 1) + math.log(clients)
    return int(np.count_nonzero(fewer <= -_CORRECT * math.log(2)))


def log_at_least(trials: ArrayLike, p: ArrayLike, count: ArrayLike) -> Numbers:
    """Upper bound on log P[Binomial(trials, p) >= count], by Chernoff's inequality.

    It is 0 for a count up to the mean, and -inf for one above `trials`. Shapes follow from NumPy's
    broadcasting; 0 < p < 1.
    """
    n, p, count = np.broadcast_arrays(*(np.asarray(x, dtype=float) for x in (trials, p, count)))
    part = np.clip(count / np.maximum(n, 1), 0, 1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        more = np.where(part > 0, part * np.log(part / p), 0)
        less = np.where(part < 1, (1 - part) * (np.log1p(-part) - np.log1p(-p)), 0)
    bound = np.where((count <= n * p) | (count <= 0), 0, -n * (more + less))
    return np.where(count > n, -math.inf, bound)


def log_surrounded(clients: int, corrupt: int, p: float, threshold: int) -> float:
    """Upper bound on log P[an honest client has `threshold` colluding neighbours].

    Each edge exists with probability `p`.
    """
    return math.log(clients - corrupt) + float(log_at_least(corrupt, p, threshold))


def log_split(clients: int, corrupt: int, votes: int, p: float, threshold: int) -> Numbers:
    """Upper bounds `[h // 2]`, for a = 1, 2, ..., on log P[some a clients of V are closed].

    V, the honest voters, has at least `votes - corrupt` of the h = `clients - corrupt` honest
    clients. A set is closed if each client in it has `threshold` neighbours that are in the set or
    collude, and none in the rest of V (term 2 of the module's docstring).
    """
    honest = clients - corrupt
    a = np.arange(1, honest // 2 + 1, dtype=float)
    beyond = log_at_least(honest - a, (1 - p) ** a, np.maximum(a, votes - corrupt - a))
    return _log_choose(honest) + beyond + _log_closed(a, corrupt, p, threshold)


def log_isolated(clients: int, corrupt: int, votes: int, p: float) -> Numbers:
    """Upper bounds `[h // 2]`, for w = 1, 2, ..., on log P[some w clients of V are isolated].

    Isolated clients have no edge to the rest of V. V, the honest voters, has at least
    `votes - corrupt` of the h = `clients - corrupt` honest clients. Each edge exists with
    probability `p` (term 3 of the module's docstring).
    """
    honest = clients - corrupt
    w = np.arange(1, honest // 2 + 1, dtype=float)
    beyond = log_at_least(honest - w, (1 - p) ** w, np.maximum(w, votes - corrupt - w))
    return _log_choose(honest) + beyond


def _log_closed(a: Numbers, corrupt: int, p: float, threshold: int) -> Numbers:
    """Bounds `[h // 2]` on log P[a clients have a t edges' ends to themselves and to colluders].

    t is `threshold`, and each edge exists with probability `p`.
    Chernoff's inequality gives a bound for any s >= 0. s starts at the optimum for Poisson
    variables and is refined by a few Newton steps.
    """
    twice, once, needed = a * (a - 1) / 2, a * corrupt, a * threshold
    squared, linear = 2 * twice * p, once * p
    root = np.sqrt(linear**2 + 4 * squared * needed)
    s = np.log(np.maximum(2 * needed / np.maximum(linear + root, 1e-300), 1.0))
    for _ in range(3):
        tilted, doubly = _tilted(p, s), _tilted(p, 2 * s)
        slope = 2 * twice * doubly + once * tilted - needed
        bend = 4 * twice * doubly * (1 - doubly) + once * tilted * (1 - tilted)
        s = np.clip(s - slope / np.maximum(bend, 1e-12), 0, 50)
    bound = twice * np.log1p(p * np.expm1(2 * s)) + once * np.log1p(p * np.expm1(s)) - s * needed
    return np.where(needed > 2 * twice + once, -math.inf, np.minimum(bound, 0))


def _tilted(p: float, s: Numbers) -> Numbers:
    """Returns the mean of a Bernoulli(p) variable whose outcome 1 is weighted by e^s."""
    return p / (p + (1 - p) * np.exp(-s))


@functools.lru_cache(maxsize=16)
def _log_choose(honest: int) -> Numbers:
    """Returns the logarithms of C(honest, a) for a = 1 to honest // 2."""
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, honest + 1)))])
    a = np.arange(1, honest // 2 + 1)
    return np.asarray(logs[honest] - logs[a] - logs[honest - a])


def edge_key(agreed: bytes) -> bytes:
    """Returns the key `[32]` of the edges of the graph of a roster with the hash `agreed`."""
    return hashlib.sha256(b"privfed graph" + agreed).digest()


def partners(key: bytes, clients: tuple[int, ...], degree: int, me: int) -> tuple[int, ...]:
    """Returns the neighbours of `me`, in order; both ends of an edge compute the same from `key`.

    Two clients are neighbours if a word of 64 bits is below 2^64 `degree` / (n - 1). It is the
    first word of the AES-256 encryption of a block that holds their numbers, the smaller first.
    """
    all_clients = _numbers(clients)
    blocks = np.stack([np.minimum(all_clients, me), np.maximum(all_clients, me)], 1)
    cipher = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    words = np.frombuffer(cipher.update(blocks.astype("<u8").tobytes()), "<u8")[::2]
    limit = (degree << 64) // (len(clients) - 1)
    return tuple(all_clients[(words < limit) & (all_clients != me)].tolist())


@functools.lru_cache(maxsize=2)
def _numbers(clients: tuple[int, ...]) -> NDArray[np.uint64]:
    return np.array(clients, dtype=np.uint64)
