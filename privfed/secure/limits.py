"""What a secure sum is configured for, beside its protocol's own keys.

Who drops out of a sum and when, in a simulation: by public coins that read nobody's data.

A third of those who drop each leave after they were drawn and before they share keys, before they
send their vector, and before they help to take the masks off. The first two kinds are missing from
the sum, the last is not. The same coins serve every protocol, so that sums can be compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from privfed.core.streams import Keys, coins, uniforms
from privfed.core.vector import Indices


class Leaves(IntEnum):
    """The point at which a client drops out."""

    NEVER = 0
    BEFORE_SHARING = 1
    BEFORE_MASKING = 2
    BEFORE_UNMASKING = 3


SENDS = (Leaves.NEVER, Leaves.BEFORE_UNMASKING)
"""The points of leaving with which a client's vector is in the sum."""


def sending(dropout: float) -> float:
    """The probability with which a drawn client's vector arrives."""
    return 1.0 - 2.0 * dropout / 3.0


def leaving(dropout: float, keys: Keys, count: int) -> Indices:
    """The points where `count` clients leave `[n]`; each drops out with probability `dropout`."""
    if not dropout:
        return np.full(count, Leaves.NEVER, dtype=np.int64)
    words = keys.per_client(2)
    when = 1 + np.floor(3 * uniforms(words[:, 1])).astype(np.int64)
    return np.where(coins(words[:, 0], dropout), when, Leaves.NEVER)


FEWEST = 2
"""A sum of one row would be that row."""


@dataclass(frozen=True)
class Limits:
    """What every sum keeps to: it has at most `capacity` clients and at least `minimum`, or aborts.

    Of those who shared keys at most the part `tolerance` may be missing. `size` is the cohort that
    is expected, a public constant (0: none is known). Of a cohort at most `hostile` are hostile,
    and add no noise. A sum begins with a cohort of at least `admitted`, where that was solved for
    (0: what its protocol asks for). With `arithmetic` no cryptography runs; numbers are encoded,
    summed and lost as it would do it.

    With `layered`, clients' noise is in layers that come off by how many are missing.

    With `sites` above 0 the clients of a sum are sites, each of which sends a sum of rows: all of
    `rows` at most. Then `colluders` of them, whole sites, may be hostile or work with the server.
    """

    capacity: int
    minimum: int = 0
    arithmetic: bool = False
    tolerance: float = 1.0
    size: int = 0
    hostile: int = 0
    admitted: int = 0
    sites: int = 0
    colluders: int = 0
    rows: int = 0
    layered: bool = False

    @property
    def most_rows(self) -> int:
        """How many rows a sum may have."""
        return self.rows or self.capacity

    def least(self, clients: int) -> int:
        """How many of `clients` have to send their row."""
        return max(self.minimum, FEWEST, clients - self.missing(clients))

    def missing(self, clients: int) -> int:
        """How many of `clients` the `tolerance` is, which may be missing."""
        return math.floor(self.tolerance * clients + 1e-9)


UNLIMITED = Limits(1 << 31)
