"""From a configuration to its people: the clients, and the test set.

Order matters for privacy: the public test set is set apart first, so that it belongs to no client;
only then is the rest partitioned. A simulated partition is frozen before training and depends on
the run's seed alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from privfed.data.federation import Federation, identity
from privfed.data.holdout import Held, held_out
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
    """Load, set the public test set apart, and give the rest to clients.

    The test set is what the source declares public; else, by `holdout`, a random fraction of the
    examples ("test", where owners are simulated), of the clients ("clients"), or of each client's
    examples ("examples", a simulation). But for the last, and where nobody is `protected`, it never
    holds an example of a client that trains. A natural population may hold more or fewer than
    `clients`.

    `few` made-up clients stand for all, where that is fewer.

    Raises `Refused` where nothing would be left, and where the public set would not be public.
    """
    built = min(few or clients, clients)
    made_up = source.natural_partition and not source.found
    loaded = built if made_up else clients
    pool = source.load(loaded, streams)
    declared = source.load_test(max(round(holdout_fraction * loaded), 1), streams)
    held = held_out(pool, declared, holdout, holdout_fraction, loaded, streams, protected)
    owners = partition.owners(held.pool, built, streams)
    theirs = held.pool.owners
    if source.found and not partition.deals and (owners != theirs).any():
        raise Refused(
            "data.partition declares that it deals nobody's examples to others, and does; declare "
            "deals = True, which makes the run a simulation"
        )
    natural = partition.natural
    present = max(built, int(owners.max(initial=-1)) + 1) if natural else built
    if natural and held.pool.clients:
        present = len(held.pool.clients)
    typical = held.typical if pool.typical is None else pool.typical
    if typical is None and not source.found:
        # A simulated source has no secrets.
        typical = len(held.pool) / max(present if made_up else clients, 1)
    federation = Federation.of(held.pool, owners, present, held.test)
    return replace(
        federation,
        identities=_identities(held) if natural else None,
        public=held.public,
        typical=typical,
        shared=held.shared,
        stands_for=clients if built < clients else 0,
        tested=clients / loaded,
    )


def _identities(held: Held) -> Indices | None:
    names = held.pool.clients
    return np.array([identity(name) for name in names], dtype=np.int64) if names else None
