"""How large a committee is, and how many of it and of a cohort have to stay: from public constants.

Of a roster of n clients at most k work with the server, and all of these may sit in the committee:
so nothing rests on who drew it, or when its members were corrupted. Of its c members
T = floor((c + k) / 2) + 1 open a sum, and never fewer than k + 2; c is the smallest number, from
the one configured on, of which T is no more than the part that is to stay.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from privfed.secure.frames import NUMBER
from privfed.secure.summation import Aborted

_EXACT = 1e-9
"""A tolerance that shields floor and ceil from the last bits of a product."""


@dataclass(frozen=True)
class Committee:
    """`members` of `clients`, of whom `threshold` open a sum of at least `survivors` rows.

    At most `corrupt` of the clients, members or not, work with the server.
    """

    clients: int
    members: int
    threshold: int
    survivors: int
    corrupt: int


@dataclass(frozen=True)
class CommitteePolicy:
    """What each client insists on, whatever the server says.

    `threshold` is the fraction of a cohort, and of its committee, that has to stay, `colluders` the
    largest fraction of the cohort that may work with the server, `members` how many the committee
    has at least (or everybody). `size` is the cohort that is expected, a public constant: colluders
    are counted of no fewer, or a server could make up a small cohort.
    """

    threshold: float
    colluders: float
    members: int
    size: int = 0

    def corrupt(self, clients: int) -> int:
        """How many of `clients` may work with the server."""
        return math.floor(self.colluders * max(clients, self.size) + _EXACT)

    def committee(self, clients: int) -> Committee:
        """The committee of `clients`. Raises `Aborted` where none keeps what is promised."""
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
            raise Aborted("too few clients for so many that may collude")
        survivors = max(clients - self._lost(clients), corrupt + 2)
        return Committee(clients, members, threshold, survivors, corrupt)

    def _lost(self, clients: int) -> int:
        """How many of `clients` may be missing in the end."""
        return math.floor((1 - self.threshold) * clients + _EXACT)


def _quorum(members: int, corrupt: int) -> int:
    """T: two sets of so many members have an honest one in common, and k know no secret."""
    return max((members + corrupt) // 2 + 1, corrupt + 2)


def drawn(round: int, exchange: int, clients: tuple[int, ...], members: int) -> tuple[int, ...]:
    """The `members` of `clients`, in order, who sit in the committee of an exchange of a round.

    Hashes spread the work over clients. Any others would do as well for what is promised.
    """
    seed = b"privfed committee" + NUMBER.pack(round) + NUMBER.pack(exchange)

    def place(client: int) -> bytes:
        return hashlib.sha256(seed + NUMBER.pack(client)).digest()

    return tuple(sorted(sorted(clients, key=place)[:members]))
