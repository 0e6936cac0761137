"""From a source and a partition to the population: the clients, and the test set.

Order matters for privacy: the public test set is set apart first, so that it belongs to no client;
only then is the rest partitioned. A simulated partition is frozen before training and depends on
the run's seed alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from privfed.data.federation import Federation, client_number
from privfed.data.holdout import HoldoutSplit, held_out
from privfed.data.partition import Partition
from privfed.data.source import Source
from privfed.errors import Refused
from privfed.streams import Streams
from privfed.vector import Indices


def populate(
    source: Source,
    partition: Partition,
    clients: int,
    holdout_fraction: float,
    streams: Streams,
    holdout: str = "test",
    protected: bool = True,
    few: int | None = None,
) -> Federation:
    """Load the examples, set the public test set apart, and give the rest to clients.

    The test set is what the source declares public; else, by `holdout`, a random fraction of the
    examples ("test", where owners are simulated), of the clients ("clients"), or of each client's
    examples ("examples", a simulation). But for the last, and where nobody is `protected`, it never
    holds an example of a client that trains. A natural population may hold more or fewer than
    `clients`.

    `few` made-up clients stand for all `clients`, where that is fewer.

    Raises `Refused` where nothing would be left, and where the public set would not be public.
    """
    built = min(few or clients, clients)
    made_up = source.natural_partition and not source.real_people
    loaded = built if made_up else clients
    pool = source.load(loaded, streams)
    declared = source.load_test(max(round(holdout_fraction * loaded), 1), streams)
    split = held_out(pool, declared, holdout, holdout_fraction, loaded, streams, protected)
    owners = partition.owners(split.pool, built, streams)
    _refuse_undeclared_dealing(source, partition, owners, split.pool.owners)
    present = _present(split, owners, built) if partition.natural else built
    typical = split.typical if pool.typical is None else pool.typical
    if typical is None and not source.real_people:
        # A simulated source has no secrets.
        typical = len(split.pool) / max(present if made_up else clients, 1)
    return replace(
        Federation.of(split.pool, owners, present, split.test),
        identities=_identities(split) if partition.natural else None,
        public=split.public,
        typical=typical,
        shared=split.shared,
        stands_for=clients if built < clients else 0,
        test_scale=clients / loaded,
    )


def _refuse_undeclared_dealing(
    source: Source, partition: Partition, owners: Indices, true_owners: Indices | None
) -> None:
    """Raise `Refused` where real people's examples go to others and the partition hides that."""
    if source.real_people and not partition.deals and (owners != true_owners).any():
        raise Refused(
            "data.partition declares that it deals nobody's examples to others, and does; declare "
            "deals = True, which makes the run a simulation"
        )


def _present(split: HoldoutSplit, owners: Indices, built: int) -> int:
    """How many clients a natural population has: those that the source names, if it does."""
    return len(split.pool.clients) or max(built, int(owners.max(initial=-1)) + 1)


def _identities(split: HoldoutSplit) -> Indices | None:
    """The clients' own numbers `[clients]`, where the source names them."""
    names = split.pool.clients
    return np.array([client_number(name) for name in names], dtype=np.int64) if names else None
