"""The size of a committee, and its thresholds, from public constants.

Of a roster of n clients at most k collude with the server, and all k may be members of the
committee. So the guarantee does not depend on how the committee was drawn, or on when members were
corrupted. Of its c members, T = max(floor((c + k) / 2) + 1, k + 2) open a sum. c is the smallest
number, from the configured one on, for which T members survive if no more than the permitted
fraction drops out; otherwise n.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from privfed.secure.frames import NUMBER
from privfed.secure.summation import Aborted

_EXACT = 1e-9
"""A tolerance that compensates rounding errors before floor and ceil."""


@dataclass(frozen=True)
class Committee:
    """The size and the thresholds of a committee.

    Attributes:
      clients: clients of the roster.
      members: clients in the committee.
      threshold: smallest number of members that open a sum.
      survivors: smallest number of clients whose rows are in a sum.
      corrupt: largest number of clients, members or not, that may collude with the server.
    """

    clients: int
    members: int
    threshold: int
    survivors: int
    corrupt: int


@dataclass(frozen=True)
class CommitteePolicy:
    """The requirements that each client enforces, whatever the server sends.

    Attributes:
      threshold: fraction of a cohort, and of its committee, that must survive.
      colluders: largest fraction of a cohort that may collude with the server.
      members: smallest size of the committee, to which all clients of a smaller cohort belong.
      size: expected cohort size, a public constant; colluders are a fraction of the larger of this
        size and the cohort's, so that a server cannot present a small cohort.
    """

    threshold: float
    colluders: float
    members: int
    size: int = 0

    def corrupt(self, clients: int) -> int:
        """Returns the largest number of `clients` that may collude with the server."""
        return math.floor(self.colluders * max(clients, self.size) + _EXACT)

    def committee(self, clients: int) -> Committee:
        """Returns the committee of a roster of `clients`.

        Raises `Aborted` if `clients` are too few for the number that may collude.
        """
        corrupt = self.corrupt(clients)
        least = min(self.members, clients)
        fits = (
            members
            for members in range(least, clients)
            if _quorum(members, corrupt) <= members - self._lost(members)
        )
        members = next(fits, clients)
        threshold = _quorum(members, corrupt)
        if threshold > members:
            raise Aborted("too few clients for the number that may collude")
        survivors = max(clients - self._lost(clients), corrupt + 2)
        return Committee(clients, members, threshold, survivors, corrupt)

    def _lost(self, clients: int) -> int:
        """Returns floor((1 - `threshold`) * `clients`): the largest number that may drop out."""
        return math.floor((1 - self.threshold) * clients + _EXACT)


def _quorum(members: int, corrupt: int) -> int:
    """Returns the number T of members that open a sum.

    Any two sets of T members share an honest member, and `corrupt` members open no secret.
    """
    return max((members + corrupt) // 2 + 1, corrupt + 2)


def drawn(round: int, exchange: int, clients: tuple[int, ...], members: int) -> tuple[int, ...]:
    """Returns the committee of an exchange: `members` of the `clients` (or all), ascending.

    Hashes of round, exchange and client choose them, which distributes the work over clients. The
    guarantees hold for any choice.
    """
    seed = b"privfed committee" + NUMBER.pack(round) + NUMBER.pack(exchange)

    def place(client: int) -> bytes:
        return hashlib.sha256(seed + NUMBER.pack(client)).digest()

    return tuple(sorted(sorted(clients, key=place)[:members]))
