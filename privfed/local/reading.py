"""Clients' examples on their way from files: read ahead, by a thread, while others train."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch

from privfed.data.federation import Federation
from privfed.vector import Indices

P = TypeVar("P")
R = TypeVar("R")
MOST_AHEAD = 1 << 24
"""Numbers that are read ahead at most, 64 MB of them: what has more is read step by step."""


def read_ahead(pieces: Iterable[P], read: Callable[[P], R]) -> Iterator[tuple[P, R]]:
    """Each of `pieces`, in order, with what `read` makes of it.

    A thread works that out one piece ahead of the caller, and never further. What `read` raises is
    raised where its piece would have come. Once the iterator is closed, nothing is read any more.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="reading") as thread:
        before = None
        for piece in pieces:
            following = piece, thread.submit(read, piece)
            if before:
                yield before[0], before[1].result()
            before = following
        if before:
            yield before[0], before[1].result()


def in_memory(federation: Federation, ids: Indices) -> Federation:
    """Clients `ids` `[c]` alone, in their order: those numbered from 0, with their own examples.

    Their features are copied into memory and have their final form. A store is never empty: where
    nobody has an example, there is one that is nobody's.
    """
    offsets = np.concatenate([[0], np.cumsum(federation.sizes(ids))]).astype(np.int64)
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
    rows = np.repeat(federation.offsets[ids], np.diff(offsets)) + within
    if len(rows):
        index = torch.from_numpy(rows).to(federation.examples.y.device)
        x, y = federation.gather(index)
    else:
        x, y = federation.examples.made_up(1)
    examples = replace(
        federation.examples, x=x, y=y, owners=None, clients=(), sites=None, site_names=()
    )
    return replace(
        federation,
        examples=examples,
        offsets=offsets,
        identities=federation.identify(ids),
        sites=None if federation.sites is None else federation.sites[ids],
        persons=None,
        _stages={},
    )


def as_read(federation: Federation, ids: Indices) -> tuple[Federation, Indices]:
    """The population that holds clients `ids` `[c]` in memory, and their places there `[c]`.

    It is `federation` itself where they have more examples than are held at once.
    """
    numbers = int(federation.sizes(ids).sum()) * math.prod(federation.examples.x.shape[1:])
    if numbers > MOST_AHEAD:
        return federation, ids
    return in_memory(federation, ids), np.arange(len(ids))
