"""The sparse mask graph: neighbours on a circle (Bell et al. 2020, section 3).

SecAgg+, for a server that follows the protocol: each client's neighbours are the k nearest others
on a random circle. k is the smallest even number that gives two guarantees. Except with probability
2^-40, honest survivors stay connected and no honest client has t or more colluding neighbours.
Except with probability 2^-20, t neighbours of every client survive.
"""

from __future__ import annotations

import functools
import hashlib
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from privfed.secure.summation import Aborted

SECURE = 40
"""-log2 of the failure probability of connectivity and secrecy (sigma of Bell et al.)."""
_CORRECT = 20
"""-log2 of the probability that too few neighbours survive (eta of Bell et al.)."""


class CircleShape(NamedTuple):
    """The number of neighbours of each client, and how many of these have to survive."""

    degree: int
    threshold: int


def sparsest_circle(clients: int, corrupt: int, lost: int, degree: int = 0) -> CircleShape | None:
    """Returns the smallest number of neighbours with this module's guarantees, and the threshold.

    If `degree` is given, returns that number. Returns None for the complete graph: if no smaller
    degree has the guarantees, or `degree` is at least `clients` - 1.

    Args:
      clients: clients of the roster.
      corrupt: clients that may collude.
      lost: clients that may drop out.
      degree: number of neighbours to use, even; 0 for the smallest possible.

    Raises:
      Aborted: if `degree` is from 1 to `clients` - 2 and does not give the guarantees.
    """
    least, most = (degree, degree) if degree else (2, clients - 2)
    if degree >= clients - 1:
        return None
    while least < most:  # if k suffices, so does k + 2: safer, and at least as likely connected
        middle = (least + most) // 4 * 2
        least, most = (
            (least, middle) if _keeps(clients, corrupt, lost, middle) else (middle + 2, most)
        )
    threshold = _keeps(clients, corrupt, lost, least)
    if threshold is None and degree:
        raise Aborted(f"secure.neighbours is {degree}, too few for these clients and colluders")
    return CircleShape(least, threshold) if threshold else None


def _keeps(clients: int, corrupt: int, lost: int, degree: int) -> int | None:
    """Returns the threshold with which `degree` neighbours give the guarantees, or None."""
    if degree < 2 or degree % 2 or degree > clients - 2:
        return None
    if _log2_cut(clients, corrupt + lost, degree) >= -(SECURE + 1):
        return None
    more = tail(clients, corrupt, degree)[1:]
    secure = np.flatnonzero(more <= 2.0 ** -(SECURE + 1) / clients)
    fewer = tail(clients, lost, degree)[::-1]
    correct = np.flatnonzero(fewer <= 2.0**-_CORRECT / clients)
    if not len(secure) or secure[0] >= correct[-1]:
        return None
    return max(int(secure[0]) + 1, 2)


def tail(clients: int, marked: int, degree: int) -> NDArray[np.float64]:
    """Returns P[of `degree` clients drawn without replacement, j or more are marked], for each j.

    `marked` of the `clients` are marked; j = 0, ..., degree + 1.
    """
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
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _log2_cut(clients: int, gone: int, degree: int) -> float:
    """Upper bound on log2 P[losing `gone` clients splits the others] (Bell et al., lemma 3.7)."""
    n, k = clients, degree
    if gone < k:
        return -math.inf
    ways = math.log(n * (n - k - 1) / 2) if n > k + 1 else -math.inf
    above = math.lgamma(gone + 1) + math.lgamma(n - k + 1)
    below = math.lgamma(n + 1) + math.lgamma(gone - k + 1)
    return (ways + above - below) / math.log(2)


def neighbours(seed: bytes, clients: tuple[int, ...], degree: int, me: int) -> tuple[int, ...]:
    """Returns, sorted, the `degree` // 2 clients on either side of `me` in the circle of `seed`."""
    circle, places = _circle(seed, clients)
    at = places[me]
    reach = range(1, degree // 2 + 1)
    near = [circle[(at + sign * step) % len(circle)] for step in reach for sign in (-1, 1)]
    return tuple(sorted(near))


@functools.lru_cache(maxsize=2)
def _circle(seed: bytes, clients: tuple[int, ...]) -> tuple[tuple[int, ...], dict[int, int]]:
    """Returns the clients in the order of their hashes, and each client's index in that order."""
    circle = tuple(sorted(clients, key=functools.partial(_place, seed)))
    return circle, {client: at for at, client in enumerate(circle)}


def _place(seed: bytes, client: int) -> bytes:
    """Returns the hash that determines a client's position in the circular order of `seed`."""
    return hashlib.sha256(seed + client.to_bytes(8, "little")).digest()
