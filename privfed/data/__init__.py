"""From a source of examples to a population of clients.

Order matters for privacy: the public test set is set apart first, so that it belongs to no client;
only then is the rest partitioned. A simulated partition is frozen before training and depends on
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

    def load(self, clients: int, streams: Streams) -> Examples:
        """All examples. Owners, where known, are numbers from 0."""
        ...

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        """Examples of `clients` further clients, declared public; None where there are none.

        A source that knows owners has to have them: splitting its examples would publish measures
        of its clients' own data.
        """
        ...


class Partition(Protocol):
    """Who owns each example."""

    def owners(self, examples: Examples, clients: int, streams: Streams) -> Indices:
        """`[N]` numbers in [0, clients)."""
        ...


def populate(
    source: Source, partition: Partition, clients: int, holdout_fraction: float, streams: Streams
) -> Federation:
    """Load, set the public test set apart, and give the rest to clients.

    The test set is `holdout_fraction` of the examples, or where the source knows owners, so many
    further clients: it never holds an example of a client that trains.
    """
    pool = source.load(clients, streams)
    test = source.load_test(max(round(holdout_fraction * clients), 1), streams)
    if test is None:
        pool, test = _split(pool, holdout_fraction, streams)
    owners = partition.owners(pool, clients, streams)
    return Federation.of(pool, owners, clients, test)


def _split(pool: Examples, fraction: float, streams: Streams) -> tuple[Examples, Examples]:
    if pool.owners is not None:
        raise Refused(
            'data.holdout is "test", but this source knows owners and has no further, public '
            "clients to test on; splitting would publish measures of its clients' own data"
        )
    order = streams.at("holdout").generator().permutation(len(pool))
    held_out = round(fraction * len(pool))
    if not 0 < held_out < len(pool):
        raise Refused(
            f"data.holdout_fraction is {fraction} of {len(pool)} examples, which leaves "
            f"{held_out} to test and {len(pool) - held_out} to train; expected at least one each"
        )
    return pool.take(np.sort(order[held_out:])), pool.take(np.sort(order[:held_out]))
