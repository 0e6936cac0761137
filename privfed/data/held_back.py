"""What each client holds back of its own examples, to score models on and never to train on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from privfed.data.federation import Federation
from privfed.vector import Indices


def with_held_back(federation: Federation, fraction: float) -> tuple[Federation, Federation]:
    """The population as it trains, and as it scores: the same clients, with other examples.

    Each client holds back `fraction` of its examples, rounded, evenly spread over them: by their
    number alone, so that what one client does hangs on nobody else. With 0 all examples are for
    both, and a client that has one scores on none.
    """
    if not fraction:
        return federation, federation
    sizes = np.diff(federation.offsets)
    place = np.arange(len(federation.examples)) - np.repeat(federation.offsets[:-1], sizes)
    held = np.floor((place + 1) * fraction + 0.5) > np.floor(place * fraction + 0.5)
    return _only(federation, ~held), _only(federation, held)


def _only(federation: Federation, chosen: np.ndarray) -> Federation:
    """The population with those of its examples alone that are `chosen` `[N]`."""
    before = np.concatenate([[0], np.cumsum(chosen)]).astype(np.int64)
    offsets: Indices = before[federation.offsets]
    examples = federation.examples.take(np.flatnonzero(chosen))
    return replace(federation, examples=examples, offsets=offsets, _stages={})
