"""Builds the population from a source and a partition: the clients, and the test set.

The order matters for privacy: the public test set is held out before the rest is partitioned, so
its examples are never assigned to a client. A simulated partition is fixed before training, and
draws its random numbers from the run's seed alone.
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
    refuse_undeclared,
    synthetic_entries,
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
    """Loads the examples, holds out the public test set, and assigns the rest to clients.

    The test set depends on `holdout`. "test": the source's own test set, without one a random
    fraction of the examples (only for simulated clients). "clients": a random fraction of the
    clients. "examples": a random fraction of each client's examples (a simulation). "none": it is
    empty. `privfed.data.holdout.held_out` states which of them use the source's own test set.

    If `sites` are declared, each client is at one or several of them, which the source states or
    which are simulated. The clients of the result are then entries: one for each client at each of
    its sites.

    Args:
      source: the source of examples.
      partition: assigns examples to clients.
      clients: declared number of clients; a natural population may have another.
      holdout_fraction: fraction to hold out.
      streams: random streams of the run.
      holdout: the rule of the test set: "test", "clients", "examples" or "none".
      protected: whether a guarantee covers the clients.
      few: number of simulated clients to build instead of all, for a rehearsal; None or 0: all.
      sites: the declared sites.

    Returns:
      The population.

    Raises:
      Refused: if no example would be left to train or to test, the test set would not be public,
        or the partition or the sites contradict their declaration.
    """
    built = min(few or clients, clients)
    synthetic = source.natural_partition and not source.holds_real_clients
    loaded = built if synthetic else clients
    pool = source.load(loaded, streams)
    refuse_undeclared(pool, partition.assigns, sites)
    declared = source.load_test(max(round(holdout_fraction * loaded), 1), streams)
    split = held_out(pool, declared, holdout, holdout_fraction, loaded, streams, protected)
    owners = partition.owners(split.pool, built, streams)
    _refuse_undeclared_partition(source, partition, owners, split.pool.owners)
    present = _present(split, owners, built) if partition.natural else built
    typical = split.typical if pool.typical is None else pool.typical
    if typical is None and not source.holds_real_clients:
        # A simulated source has no secrets.
        typical = len(split.pool) / max(present if synthetic else clients, 1)
    names = split.pool.clients if partition.natural else ()
    return replace(
        _store(pool, split, owners, present, names, sites, streams),
        public=split.public,
        typical=_of_an_entry(typical, pool, split, sites),
        shared=split.shared,
        stands_for=clients if built < clients else 0,
        test_scale=clients / loaded,
    )


def _refuse_undeclared_partition(
    source: Source, partition: Partition, owners: Indices, true_owners: Indices | None
) -> None:
    """Raises `Refused` if `assigns` is False, but real clients' examples get other owners."""
    if source.holds_real_clients and not partition.assigns and (owners != true_owners).any():
        raise Refused(
            "data.partition declares assigns = False, but assigns examples to other clients; "
            "declare assigns = True, which makes the run a simulation"
        )


def _present(split: HoldoutSplit, owners: Indices, built: int) -> int:
    """Returns the number of clients in the population, including clients without examples.

    It is the number of names in the training pool; without names, the larger of `built` and the
    highest of `owners` plus 1.
    """
    return len(split.pool.clients) or max(built, int(owners.max(initial=-1)) + 1)


def _identities(names: tuple[str, ...]) -> Indices | None:
    """Returns the identities `[clients]` of clients with these names; None without names."""
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
    """Returns the training examples, grouped by client, or by client and site, as a population."""
    identities = _identities(names)
    if not sites.count:
        federation = Federation.of(split.pool, owners, clients, split.test)
        return replace(federation, identities=identities)
    if pool.sites is not None:
        entries = known_entries(pool, split.pool, owners, clients, sites)
    else:
        who = np.arange(clients) if identities is None else identities
        entries = synthetic_entries(split.pool, owners, who, sites, streams)
    return replace(
        Federation.of(split.pool, entries.owners, len(entries.sites), split.test),
        identities=entry_identities(entries, names, pool.site_names, sites),
        sites=entries.sites,
        persons=entries.persons if sites.per_client > 1 else None,
    )


def _of_an_entry(
    typical: float | None, pool: Examples, split: HoldoutSplit, sites: Sites
) -> float | None:
    """Returns the estimated number of examples of an entry; None if `typical` is None.

    It is `typical` if `sites.per_client` is 1, and `typical` / `sites.per_client` if sites are
    simulated. If the source states sites, it is the mean number in the test set's entries; or
    `typical`, if the test set has no owners or sites, or its clients also train.
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
