"""Canary clients: made-up ones that test a run's claim from inside.

Each of K canaries enters the *population* by a fair coin of its own, and then follows the run's own
sampler; those that do not enter are the null. Whenever it is drawn, a canary sends its own random
direction, so long that it is clipped. What is released is then compared with every direction.

They depend on nobody's data, and sampling rate and divisor stay as configured, so that the
guarantee of real clients is what it was. Coins and directions follow from a key under private/, as
does what was seen of them: secret until the run ends. Their part of a cohort is noise to learning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.ledger import Charge
from privfed.auditing.canaries.coins import fair_coins
from privfed.auditing.canaries.log import CanaryLog
from privfed.data.federation import client_number
from privfed.errors import Refused
from privfed.local.exchange import Chunk, Exchange, Executor
from privfed.privacy.mechanism import PublicState
from privfed.round.world import ReleaseStore, Watch, World
from privfed.sampling.cohort import Cohort, People
from privfed.streams import Streams
from privfed.vector import Indices

_LONG = 1e3
"""A canary's row, in clips."""
_MOST_BYTES = 4 * 2**30


@dataclass(frozen=True)
class Canaries:
    """K canaries: their `directions` `[K, d]` of length one, and `coins` `[K]`, who entered."""

    directions: Tensor
    coins: NDArray[np.bool_]

    @classmethod
    def drawn(cls, count: int, length: int, streams: Streams) -> Canaries:
        """Draw `count` canaries for models of `length` numbers.

        Raises `Refused` for more than fit into memory.
        """
        if 4 * count * length > _MOST_BYTES:
            raise Refused(
                f"audit.canaries is {count}, whose directions of {length:,} numbers each take more "
                f"than {_MOST_BYTES // 2**30} GiB; expected at most {_MOST_BYTES // 4 // length}"
            )
        coins = fair_coins(count, streams)
        directions = torch.empty(count, length)
        keys = streams.at("canaries/directions", clients=np.arange(count))
        for row, key in zip(directions, keys.each(), strict=True):
            row.copy_(torch.from_numpy(key.normal(length)))
        return cls(torch.nn.functional.normalize(directions, dim=1), coins)

    @property
    def entered(self) -> Indices:
        """The numbers of canaries in the population, in the order of their places there."""
        return np.flatnonzero(self.coins)

    def among(self, people: People) -> People:
        """The population with canaries behind the real clients."""
        names = (f"canary {number}" for number in self.entered)
        identities = np.array([client_number(name) for name in names], dtype=np.int64)
        sizes = np.concatenate([people.sizes, np.zeros(len(identities), dtype=np.int64)])
        return People(sizes, np.concatenate([people.identities, identities]))

    def products_with(self, vectors: list[Tensor]) -> NDArray[np.float64]:
        """The length of the sum of `vectors`, and all directions' products with it, `[1 + K]`.

        The first d numbers of every vector `[m]` count.
        """
        d = self.directions.shape[1]
        total = torch.stack([vector[:d].to(self.directions) for vector in vectors]).sum(0)
        return torch.cat([total.norm()[None], self.directions @ total]).double().numpy()


@dataclass(frozen=True)
class WithCanaries:
    """An executor in whose cohorts canaries answer, too.

    The real clients have the numbers below `clients`, and canaries send rows far beyond `clip`.
    """

    inner: Executor
    canaries: Canaries
    clients: int
    clip: float

    def answering(self, cohort: Cohort) -> Cohort:
        real, made_up = self._parted(cohort)
        answering = self.inner.answering(replace(cohort, clients=real))
        return replace(cohort, clients=np.concatenate([answering.clients, made_up]))

    def chunks(self, exchange: Exchange, cohort: Cohort) -> Iterator[Chunk]:
        real, made_up = self._parted(cohort)
        yield from self.inner.chunks(exchange, replace(cohort, clients=real))
        if len(made_up):
            rows = self._rows(exchange, made_up)
            yield Chunk(made_up, rows, rows.new_ones(len(rows)))

    def reduce(self, total: Tensor) -> Tensor:
        return self.inner.reduce(total)

    def root(self, exchange: Exchange, round: int) -> Tensor:
        return self.inner.root(exchange, round)

    def _parted(self, cohort: Cohort) -> tuple[Indices, Indices]:
        """The real clients of a cohort, and its canaries."""
        ids = cohort.clients
        return ids[ids < self.clients], ids[ids >= self.clients]

    def _rows(self, exchange: Exchange, made_up: Indices) -> Tensor:
        """The rows `[c, m]` of canaries with the numbers `made_up` `[c]` in the population."""
        numbers = torch.from_numpy(self.canaries.entered[made_up - self.clients])
        directions = self.canaries.directions[numbers] * (_LONG * self.clip)
        rows = exchange.broadcast["params"].new_zeros(len(numbers), exchange.layout.length)
        rows[:, : directions.shape[1]] = directions.to(rows)
        return rows


@dataclass(frozen=True)
class WithoutCanaries:
    """A watch that is shown the rows of real clients only, whose numbers are below `clients`."""

    inner: Watch
    clients: int

    def rows(
        self, round: int, ids: NDArray[np.int64], rows: Tensor, hostile: NDArray[np.bool_]
    ) -> None:
        real = ids < self.clients
        self.inner.rows(round, ids[real], rows[torch.from_numpy(real)], hostile[real])

    def aggregate(self, round: int, aggregate: Tensor) -> None:
        self.inner.aggregate(round, aggregate)


@dataclass(frozen=True)
class ListeningStore:
    """A release store that holds every release against the canaries, once it is durable."""

    inner: ReleaseStore
    canaries: Canaries
    log: CanaryLog

    def write(self, charge: Charge, released: list[Tensor], state: PublicState) -> None:
        self.inner.write(charge, released, state)
        self.log.append(charge.round, self.canaries.products_with(released))


def with_canaries(
    world: World, clients: int, clip: float, canaries: Canaries, log: CanaryLog
) -> World:
    """The world with `canaries` behind its `clients`, whose releases are noted in `log`.

    When one is drawn, it sends a row far beyond `clip`.
    """
    return replace(
        world,
        executor=WithCanaries(world.executor, canaries, clients, clip),
        people=canaries.among(world.people),
        store=ListeningStore(world.store, canaries, log),
        watch=WithoutCanaries(world.watch, clients) if world.watch else None,
    )
