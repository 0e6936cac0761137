"""Limits of secure sums, independent of the protocol, and simulated dropout.

Dropout is simulated from public randomness that depends on no client's data. A client drops out at
one of three stages, with equal probability: before sharing keys, before sending its row, or before
the unmasking step. The sum lacks only the rows of clients that drop out at the first two stages.
All protocols use the same draws, so their sums can be compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from privfed.core.streams import Keys, bernoulli, uniforms
from privfed.core.vector import Indices


class Leaves(IntEnum):
    """The stage at which a client drops out; `NEVER` if it does not."""

    NEVER = 0
    BEFORE_SHARING = 1
    BEFORE_MASKING = 2
    BEFORE_UNMASKING = 3


SENDS = (Leaves.NEVER, Leaves.BEFORE_UNMASKING)
"""The dropout stages of clients whose rows are in the sum nevertheless."""


def sending(dropout: float) -> float:
    """Returns the probability 1 - 2/3 `dropout` that a sampled client sends its row.

    One third of dropouts occur after the row was sent (`Leaves`).
    """
    return 1.0 - 2.0 * dropout / 3.0


def leaving(dropout: float, keys: Keys, count: int) -> Indices:
    """Draws the stages at which clients drop out, each of the three with equal probability.

    Args:
      dropout: probability with which each client drops out.
      keys: random streams of the clients.
      count: number of clients n.

    Returns:
      Stages of `Leaves`, shape [n]; `Leaves.NEVER` for clients that do not drop out.
    """
    if not dropout:
        return np.full(count, Leaves.NEVER, dtype=np.int64)
    words = keys.per_client(2)
    when = 1 + np.floor(3 * uniforms(words[:, 1])).astype(np.int64)
    return np.where(bernoulli(words[:, 0], dropout), when, Leaves.NEVER)


FEWEST = 2
"""Smallest number of rows in a sum: a sum of one row would be that row."""


@dataclass(frozen=True)
class Limits:
    """Size limits of every secure sum.

    Attributes:
      capacity: largest number of clients in a sum.
      minimum: smallest number of clients whose rows are in a sum; a sum of fewer, or of a single
        row, aborts.
      arithmetic: if true, no cryptography runs: encoding, summation and dropout are simulated.
      tolerance: largest fraction of clients that may drop out after key exchange, before they send
        a row.
      size: expected cohort size, a public constant; 0 if unknown.
      byzantine: largest number of Byzantine clients in a cohort; their noise is not relied on.
      admitted: smallest cohort with which a sum starts; 0 for the protocol's own default.
      sites: number of sites if sites are the clients of sums, each with a sum of rows; otherwise 0.
      colluders: number of sites that may be Byzantine or collude with the server.
      rows: largest number of rows over all sites; 0 if clients are the parties.
      layered: whether noise consists of layers that are removed according to the dropouts.
    """

    capacity: int
    minimum: int = 0
    arithmetic: bool = False
    tolerance: float = 1.0
    size: int = 0
    byzantine: int = 0
    admitted: int = 0
    sites: int = 0
    colluders: int = 0
    rows: int = 0
    layered: bool = False

    @property
    def most_rows(self) -> int:
        """The largest number of rows in a sum, over all sites if sites are the parties."""
        return self.rows or self.capacity

    def least(self, clients: int) -> int:
        """Returns max(`minimum`, 2, `clients` - `missing(clients)`): the fewest rows of a sum."""
        return max(self.minimum, FEWEST, clients - self.missing(clients))

    def missing(self, clients: int) -> int:
        """Returns the number of `clients` that may drop out: floor(`tolerance` * `clients`)."""
        return math.floor(self.tolerance * clients + 1e-9)


UNLIMITED = Limits(1 << 31)
