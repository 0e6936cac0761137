"""Who drops out of a sum and when, in a simulation: by public coins that read nobody's data.

A third of those who drop each leave after they were drawn and before they share keys, before they
send their vector, and before they help to take the masks off. The first two kinds are missing from
the sum, the last is not. The same coins serve every protocol, so that sums can be compared.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from privfed.streams import Keys, coins, uniforms
from privfed.vector import Indices


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
