"""From a source and a partition to the population: the clients, and the test set.

Order matters for privacy: the public test set is set apart first, so that it belongs to no client;
only then is the rest partitioned. A simulated partition is frozen before training and depends on
the run's seed alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.core.vector import Indices
from privfed.data.federation import Examples, Federation, client_number
from privfed.data.holdout import HoldoutSplit, held_out
from privfed.data.partitions.basic import Partition
from privfed.data.sites import (
    NO_SITES,
    Sites,
    entry_identities,
    known_entries,
    made_up_entries,
    refuse_undeclared,
)
from privfed.data.source import Source


def populate(
    source: Source,
    partition: Partition,
    clients: int,
    holdout_fraction: float,
    streams: Streams,
    holdout: str = "test",
    protected: bool = True,
    few: int | None = None,
    sites: Sites = NO_SITES,
) -> Federation:
    """Loads the examples, set the public test set apart, and give the rest to clients.

    The test set is what the source declares public; else, by `holdout`, a random fraction of the
    examples ("test", where owners are simulated), of the clients ("clients"), or of each client's
    examples ("examples", a simulation). But for the last, and where nobody is `protected`, it never
    holds an example of a client that trains. A natural population may hold more or fewer than
    `clients`.

    `few` made-up clients stand for all `clients`, where that is fewer.

    Where `sites` are declared, each client is at one or several of them: those that the source
    knows, else ones that are made up. Then `clients` of the result are entries, one for each client
    at each of its sites.

    Raises `Refused` where nothing would be left, where the public set would not be public, and
    where sites are not as they are declared.
    """
    built = min(few or clients, clients)
    made_up = source.natural_partition and not source.real_people
    loaded = built if made_up else clients
    pool = source.load(loaded, streams)
    refuse_undeclared(pool, partition.deals, sites)
    declared = source.load_test(max(round(holdout_fraction * loaded), 1), streams)
    split = held_out(pool, declared, holdout, holdout_fraction, loaded, streams, protected)
    owners = partition.owners(split.pool, built, streams)
    _refuse_undeclared_dealing(source, partition, owners, split.pool.owners)
    present = _present(split, owners, built) if partition.natural else built
    typical = split.typical if pool.typical is None else pool.typical
    if typical is None and not source.real_people:
        # A simulated source has no secrets.
        typical = len(split.pool) / max(present if made_up else clients, 1)
    names = split.pool.clients if partition.natural else ()
    return replace(
        _store(pool, split, owners, present, names, sites, streams),
        public=split.public,
        typical=_of_an_entry(typical, pool, split, sites),
        shared=split.shared,
        stands_for=clients if built < clients else 0,
        test_scale=clients / loaded,
    )


def _refuse_undeclared_dealing(
    source: Source, partition: Partition, owners: Indices, true_owners: Indices | None
) -> None:
    """Raises `Refused` where real people's examples go to others and the partition hides that."""
    if source.real_people and not partition.deals and (owners != true_owners).any():
        raise Refused(
            "data.partition declares that it deals nobody's examples to others, and does; declare "
            "deals = True, which makes the run a simulation"
        )


def _present(split: HoldoutSplit, owners: Indices, built: int) -> int:
    """How many clients a natural population has: those that the source names, if it does."""
    return len(split.pool.clients) or max(built, int(owners.max(initial=-1)) + 1)


def _identities(names: tuple[str, ...]) -> Indices | None:
    """The clients' own numbers `[clients]`, where the source names them."""
    return np.array([client_number(name) for name in names], dtype=np.int64) if names else None


def _store(
    pool: Examples,
    split: HoldoutSplit,
    owners: Indices,
    clients: int,
    names: tuple[str, ...],
    sites: Sites,
    streams: Streams,
) -> Federation:
    """The examples to train on by client, or by client and site; `pool` are all of the source."""
    identities = _identities(names)
    if not sites.count:
        federation = Federation.of(split.pool, owners, clients, split.test)
        return replace(federation, identities=identities)
    if pool.sites is not None:
        entries = known_entries(pool, split.pool, owners, clients, sites)
    else:
        who = np.arange(clients) if identities is None else identities
        entries = made_up_entries(split.pool, owners, who, sites, streams)
    return replace(
        Federation.of(split.pool, entries.owners, len(entries.sites), split.test),
        identities=entry_identities(entries, names, pool.site_names, sites),
        sites=entries.sites,
        persons=entries.persons if sites.per_client > 1 else None,
    )


def _of_an_entry(
    typical: float | None, pool: Examples, split: HoldoutSplit, sites: Sites
) -> float | None:
    """How much of a client's `typical` number of examples one of its entries holds.

    Where sites are known, it is what clients of the test set hold, if that says where.
    """
    if typical is None or sites.per_client == 1:
        return typical
    test = split.test
    if pool.sites is None:
        return typical / sites.per_client
    if test.owners is None or test.sites is None or split.shared:
        return typical
    pairs = {*zip(test.owners.tolist(), test.sites.tolist(), strict=True)}
    return len(test) / max(len(pairs), 1)
