"""Canaries' own numbers, by which their coins, slots and shuffles are keyed: never a client's."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from privfed.data.federation import client_number
from privfed.vector import Indices


def canary_identities(numbers: Indices, parts: Iterable[int] | None = None) -> Indices:
    """The own number of each of the canaries `numbers` `[c]`, or of such `parts` `[c]` of them.

    All are below 0, and clients' are not (`privfed.data.federation.client_number`, or a place),
    whatever these are called: were a canary's the same as a client's, it would take part in that
    client's secret slot, and tell which that is.
    """
    of_canary = [0] * len(numbers) if parts is None else parts
    names = (_name(*each) for each in zip(numbers.tolist(), of_canary, strict=True))
    return np.array([~client_number(name) for name in names], dtype=np.int64)


def _name(canary: int, part: int) -> str:
    return f"canary {canary}, part {part}" if part else f"canary {canary}"
