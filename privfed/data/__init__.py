"""From a source of examples to a population of clients.

Order matters for privacy: the public test set is split off first, so that it belongs to no client;
only then are the rest partitioned. A simulated partition is frozen before training and depends on
the run's seed alone.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from privfed.errors import Refused
from privfed.federation import Examples, Federation, Indices
from privfed.streams import Streams


class Source(Protocol):
    """Where examples come from."""

    natural_partition: bool
    """Whether the source knows who owns each example, and partitions by that unless told."""

    def load(self, clients: int, streams: Streams) -> Examples: ...


class Partition(Protocol):
    """Who owns each example."""

    def owners(self, examples: Examples, clients: int, streams: Streams) -> Indices:
        """`[N]` numbers in [0, clients)."""
        ...


def populate(
    source: Source, partition: Partition, clients: int, holdout_fraction: float, streams: Streams
) -> Federation:
    """Load, split off the public test set, and give the rest to clients."""
    pool = source.load(clients, streams)
    order = streams.at("holdout").generator().permutation(len(pool))
    held_out = round(holdout_fraction * len(pool))
    if not 0 < held_out < len(pool):
        raise Refused(
            f"data.holdout_fraction is {holdout_fraction} of {len(pool)} examples, which leaves "
            f"{held_out} to test and {len(pool) - held_out} to train; expected at least one each"
        )
    test, train = pool.take(np.sort(order[:held_out])), pool.take(np.sort(order[held_out:]))
    owners = partition.owners(train, clients, streams)
    return Federation.of(train, owners, clients, test)
