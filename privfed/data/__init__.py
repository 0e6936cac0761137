"""From a source of examples to a population of clients.

Order matters for privacy: the public test set is set apart first, so that it belongs to no client;
only then is the rest partitioned. A simulated partition is frozen before training and depends on
the run's seed alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import numpy as np

from privfed.data.holdout import Held, held_out
from privfed.errors import Refused
from privfed.federation import Examples, Federation, Indices, identity
from privfed.preprocessing import Preprocessing
from privfed.streams import Streams

if TYPE_CHECKING:
    from torch import Tensor


class Source(Protocol):
    """Where examples come from.

    What it refuses it names by file, row and what was declared; what stands there belongs into the
    `private` of `Refused`, never into its message.
    """

    natural_partition: ClassVar[bool]
    """Whether the source may know who owns each example, and partitions by that unless told."""
    found: ClassVar[bool]
    """Whether it is a file of real people, say, whose number has to be declared."""

    @property
    def squared_norm(self) -> float | None:
        """What |x|^2 of no example exceeds, as the configuration alone declares; None: nothing."""
        ...

    def sources(self, seed: int) -> tuple[str, ...]:
        """Where its examples come from: two sources that share one may hold the same people's.

        The first says who is a client, where clients are the source's own. Never how examples are
        dealt to clients, nor what a copy would change.
        """
        ...

    def load(self, clients: int, streams: Streams) -> Examples:
        """All examples. Owners, where known, are numbers from 0."""
        ...

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        """Public examples beside those of `load`: a file of them, or those of `clients` others.

        None where there are none.
        """
        ...


@runtime_checkable
class LabelFree(Protocol):
    """A source whose examples may come without labels, for a model to predict."""

    def load_inputs(self) -> Examples:
        """All examples, in the order of the file, and whether they are `labelled`."""
        ...


@runtime_checkable
class Prepares(Protocol):
    """A source that makes x from several raw columns, and can do so for made-up rows."""

    def prepared(self, numbers: np.ndarray, codes: Indices, how: Preprocessing) -> Tensor:
        """X `[N, features]` of numbers `[N, *]` and places among categories' values `[N, *]`.

        Columns are in the order of `how`, which declares what of this source they are. Nothing is
        refused: numbers beyond their bounds and other categories are taken as if declared so.
        """
        ...


class Partition(Protocol):
    """Who owns each example."""

    natural: ClassVar[bool]
    """Whether owners are the source's own clients."""
    by_chance: ClassVar[bool]
    """Whether examples are dealt by chance: any handful of them is like a client's."""
    deals: ClassVar[bool]
    """Whether it gives examples to others than whose they are."""

    def owners(self, examples: Examples, clients: int, streams: Streams) -> Indices:
        """`[N]` numbers from 0; below `clients` where the partition is simulated."""
        ...


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
