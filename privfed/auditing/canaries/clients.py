"""Canary clients: made-up ones that test a run's claim from inside.

Each of K canaries is one of two neighbours of the run's relation by a fair coin of its own
(`privfed.auditing.canaries.coins`, which has the proof), and follows the run's own sampler, sites,
secure sum and clip. Whenever it is drawn, a canary sends its own random direction, so long that it
is clipped. What is released is then compared with every direction.

They depend on nobody's data, and sampling rate and divisor stay as configured, so that the
guarantee of real clients is what was charged. Coins and directions follow from a key under
private/, as does what was seen of them: secret until the run ends. Their part of a cohort is noise
to learning.

*A clip that follows norms* (`Mechanism.adaptive`) does so by a sum of b - 1/2 over all rows, where
b = 1 for a row within the clip, over a divisor that is fixed. A share of canaries sends rows just
within the clip of the round, and the others send rows far beyond it; which of them do depends on
their numbers, and on no coin. The share is a half, whose part of that sum is 0 in expectation; and
the quantile itself where canaries take the places of clients, whose part of the sum they stand for.
So in expectation the clip follows the quantile of real clients that it followed without canaries.
To contribute nothing is then to be left out of the sum, as any row would be counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.events import ADD_REMOVE
from accounting.ledger import Charge
from defenses.types import RowRule, SumRule
from privfed.auditing.canaries.coins import (
    canary_coins,
    canary_identities,
    coin_signs,
    in_population,
    number_of_nothing,
    takes_places,
)
from privfed.auditing.canaries.log import CanaryLog
from privfed.client.exchange import Chunk, Exchange, Executor
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.core.vector import Indices
from privfed.privacy.clipping import FollowsQuantile
from privfed.privacy.mechanism import Mechanism, PublicState
from privfed.round.world import ReleaseStore, Watch, World
from privfed.sampling.cohort import Cohort, People, Witness

_LONG = 1e3
"""A canary's row, in clips."""
_WITHIN = 0.999
"""The same of one that a clip is told is within it."""
_MOST_BYTES = 4 * 2**30


@dataclass(frozen=True)
class Canaries:
    """K canaries: their `directions` `[K, d]` of length one, and secret `coins` `[K]`, heads True.

    What a coin decides follows from the `relation` that the run claims something about. Each canary
    has `parts` rows, at as many of the `sites` that hold clients; by its number, in turn.
    """

    directions: Tensor
    coins: NDArray[np.bool_]
    relation: str = ADD_REMOVE
    sites: int = 0
    parts: int = 1

    @classmethod
    def drawn(
        cls,
        count: int,
        length: int,
        streams: Streams,
        relation: str = ADD_REMOVE,
        sites: int = 0,
        parts: int = 1,
    ) -> Canaries:
        """Draw `count` canaries for models of `length` numbers, and tell what their coins decide.

        Raises `Refused` for more than fit into memory.
        """
        if 4 * count * length > _MOST_BYTES:
            raise Refused(
                f"audit.canaries is {count}, whose directions of {length:,} numbers each take more "
                f"than {_MOST_BYTES // 2**30} GiB; expected at most {_MOST_BYTES // 4 // length}"
            )
        coins = canary_coins(count, streams)
        directions = torch.empty(count, length)
        keys = streams.at("canaries/directions", clients=np.arange(count))
        for row, key in zip(directions, keys.each(), strict=True):
            row.copy_(torch.from_numpy(key.normal(length)))
        unit = torch.nn.functional.normalize(directions, dim=1)
        return cls(unit, coins, relation, sites, parts)

    @property
    def entered(self) -> Indices:
        """The canary `[entries]` of each place behind the real clients, one for each of its parts.

        Of those in the population, in the order of their numbers.
        """
        return np.repeat(in_population(self.coins, self.relation), self.parts)

    @property
    def signs(self) -> NDArray[np.int64]:
        """How often each canary sends its direction `[K]`: 1, 0 or -1 times."""
        return coin_signs(self.coins, self.relation)

    def among(self, people: People) -> People:
        """The population with canaries behind the real clients."""
        canaries = self.entered
        part = np.arange(len(canaries)) % self.parts
        identities = canary_identities(canaries, part.tolist())
        sizes = np.concatenate([people.sizes, np.zeros(len(identities), dtype=np.int64)])
        everybody = People(sizes, np.concatenate([people.identities, identities]))
        if people.sites is None:
            return everybody
        return replace(
            everybody, sites=np.concatenate([people.sites, (canaries + part) % self.sites])
        )

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

    The real clients have the numbers below `clients`, and canaries send rows far beyond `clip`. But
    where that moves, the share `within` of them sends rows that are just within it. Rows of the
    number `nothing` add zero.
    """

    inner: Executor
    canaries: Canaries
    clients: int
    clip: float
    within: float | None = None
    nothing: float = 0.0

    def answering(self, cohort: Cohort) -> Cohort:
        real, made_up = self._parted(cohort)
        answering = self.inner.answering(replace(cohort, clients=real))
        if self.within is not None:  # whatever it sends would be counted as within the clip or not
            made_up = made_up[self.canaries.signs[self._numbers(made_up)] != 0]
        return replace(cohort, clients=np.concatenate([answering.clients, made_up]))

    def chunks(self, exchange: Exchange, cohort: Cohort) -> Iterator[Chunk]:
        real, made_up = self._parted(cohort)
        yield from self.inner.chunks(exchange, replace(cohort, clients=real))
        if len(made_up):
            rows = self._rows(exchange, made_up)
            yield Chunk(made_up, rows, rows.new_ones(len(rows)))

    def root(self, exchange: Exchange, round: int) -> Tensor:
        return self.inner.root(exchange, round)

    def _parted(self, cohort: Cohort) -> tuple[Indices, Indices]:
        """The real clients of a cohort, and its canaries."""
        ids = cohort.clients
        return ids[ids < self.clients], ids[ids >= self.clients]

    def _numbers(self, made_up: Indices) -> Indices:
        """The canaries `[c]` whose rows are those of the places `made_up` `[c]`."""
        return self.canaries.entered[made_up - self.clients]

    def _rows(self, exchange: Exchange, made_up: Indices) -> Tensor:
        """The rows `[c, m]` of canaries at the places `made_up` `[c]` in the population."""
        numbers = self._numbers(made_up)
        signs = self.canaries.signs[numbers]
        lengths = torch.from_numpy(signs * self._norms(exchange, numbers))
        directions = self.canaries.directions[torch.from_numpy(numbers)]
        rows = exchange.broadcast["params"].new_zeros(len(numbers), exchange.layout.length)
        rows[:, : directions.shape[1]] = (directions * lengths.to(directions)[:, None]).to(rows)
        rows[torch.from_numpy(signs == 0)] = self.nothing
        return rows

    def _norms(self, exchange: Exchange, numbers: Indices) -> NDArray[np.float64]:
        """The norms of the rows of canaries `numbers` `[c]`, before they are clipped."""
        if self.within is None:
            return np.full(len(numbers), _LONG * self.clip)
        clip = float(exchange.bounds.get("clip", self.clip))
        within = np.floor((numbers + 1) * self.within) > np.floor(numbers * self.within)
        return np.where(within, _WITHIN, _LONG) * clip


def part_within(mechanism: Mechanism, drawn: Witness) -> float | None:
    """The share of canaries whose rows are within the clip; None where that does not move."""
    if not mechanism.adaptive:
        return None
    if takes_places(drawn) and isinstance(mechanism, FollowsQuantile):
        return mechanism.clip_quantile
    return 0.5


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

    def judged(self, round: int, ids: NDArray[np.int64], rows: Tensor, aggregate: Tensor) -> None:
        real = ids < self.clients
        self.inner.judged(round, ids[real], rows[torch.from_numpy(real)], aggregate)

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
    world: World,
    clients: int,
    mechanism: Mechanism,
    rule: SumRule | RowRule,
    drawn: Witness,
    canaries: Canaries,
    log: CanaryLog,
) -> World:
    """The world with `canaries` behind its `clients`, whose releases are noted in `log`.

    When one is `drawn`, it sends a row that the `mechanism` clips, or one that adds zero by `rule`.
    """
    clip, within = float(mechanism.clip), part_within(mechanism, drawn)
    nothing = number_of_nothing(rule)
    return replace(
        world,
        executor=WithCanaries(world.executor, canaries, clients, clip, within, nothing),
        people=canaries.among(world.people),
        store=ListeningStore(world.store, canaries, log),
        watch=WithoutCanaries(world.watch, clients) if world.watch else None,
    )
