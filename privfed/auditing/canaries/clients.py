"""Canary clients: synthetic clients that take part in a run to test its claim.

Each of K canaries realises one of two neighbouring datasets of the run's adjacency relation,
selected by a fair secret bit (`privfed.auditing.canaries.inclusion`, which has the proof). A canary
is subject to the run's own sampler, sites, secure sum and clipping. Whenever a canary is sampled,
it sends a row along its own random direction, long enough to be clipped. The inner product of each
release with every direction is recorded.

Canaries depend on no client's data, and sampling rate and divisor stay as configured, so the
guarantee of real clients is the one charged. Bits and directions follow from a key under private/.
Bits, directions and the recorded products stay secret until the run ends. For the trained model,
canaries' rows are noise.

*Adaptive clipping* (`Mechanism.adaptive`) uses a sum of b - 1/2 over all rows, with a fixed
divisor, where b = 1 for a row within the clipping norm. A fraction of the canaries sends rows just
within the current clipping norm, and the others send rows far above it. The assignment depends on
their numbers and not on their bits. The fraction is one half, whose expected contribution to that
sum is 0. If the cohort size is fixed, canaries displace clients; the fraction is then the target
quantile, which is the contribution expected of displaced clients. So in expectation the clipping
norm follows the same quantile of real clients as without canaries. A canary that adds zero is then
left out of that sum, since any row would be counted.
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
from privfed.auditing.canaries.inclusion import (
    canary_identities,
    canary_inclusion,
    displaces_clients,
    in_population,
    inclusion_signs,
    number_of_nothing,
)
from privfed.auditing.canaries.log import CanaryLog
from privfed.client.exchange import Chunk, Exchange, Executor
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.core.vector import Indices
from privfed.privacy.clipping import FollowsQuantile
from privfed.privacy.mechanism import Mechanism, PublicState
from privfed.round.world import ReleaseStore, Watch, World
from privfed.sampling.cohort import Cohort, Population, Witness

_LONG = 1e3
"""Norm of a canary's row that is to be clipped, in clipping norms."""
_WITHIN = 0.999
"""Norm, in clipping norms, of a row that counts as within the clipping norm."""
_MOST_BYTES = 4 * 2**30


@dataclass(frozen=True)
class Canaries:
    """K canaries: unit `directions` `[K, d]`, and secret bits `inclusion` `[K]`, True for heads.

    The effect of a bit follows from the adjacency `relation` of the run's claim. Canary k has
    `parts` rows, one at each of the sites k, k + 1, ..., modulo `sites`, the number of sites that
    hold clients (0: none).
    """

    directions: Tensor
    inclusion: NDArray[np.bool_]
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
        """Generates canaries with secret bits and random directions.

        Args:
          count: number of canaries.
          length: number of parameters of the model.
          streams: source of bits and directions.
          relation: adjacency relation of the run's claim.
          sites: number of sites that hold clients; 0 for none.
          parts: rows per canary, one at each of that many sites.

        Raises:
          Refused: if the directions do not fit into memory.
        """
        if 4 * count * length > _MOST_BYTES:
            raise Refused(
                f"audit.canaries is {count}, but their directions of {length:,} numbers each "
                f"take more than {_MOST_BYTES // 2**30} GiB; expected at most "
                f"{_MOST_BYTES // 4 // length}"
            )
        inclusion = canary_inclusion(count, streams)
        directions = torch.empty(count, length)
        keys = streams.at("canaries/directions", clients=np.arange(count))
        for row, key in zip(directions, keys.each(), strict=True):
            row.copy_(torch.from_numpy(key.normal(length)))
        unit = torch.nn.functional.normalize(directions, dim=1)
        return cls(unit, inclusion, relation, sites, parts)

    @property
    def entered(self) -> Indices:
        """The canary's number at each population position after the real clients, `[entries]`.

        Numbers count from 0 and ascend. A canary in the population has `parts` positions, next to
        each other; others have none.
        """
        return np.repeat(in_population(self.inclusion, self.relation), self.parts)

    @property
    def signs(self) -> NDArray[np.int64]:
        """The sign of each canary's row `[K]`: 1 for heads; 0, or -1 (replace-one), for tails."""
        return inclusion_signs(self.inclusion, self.relation)

    def among(self, population: Population) -> Population:
        """Returns `population` with the canaries in `entered` appended to the real clients.

        If the population is at sites, part p of canary k is at site (k + p) modulo `sites`.
        """
        canaries = self.entered
        part = np.arange(len(canaries)) % self.parts
        identities = canary_identities(canaries, part.tolist())
        sizes = np.concatenate([population.sizes, np.zeros(len(identities), dtype=np.int64)])
        complete = Population(sizes, np.concatenate([population.identities, identities]))
        if population.sites is None:
            return complete
        return replace(
            complete, sites=np.concatenate([population.sites, (canaries + part) % self.sites])
        )

    def products_with(self, vectors: list[Tensor]) -> NDArray[np.float64]:
        """Returns the norm of the sum of `vectors`, and the sum's inner products with directions.

        The result has shape `[1 + K]`. Only the first d numbers of every vector `[m]` are used.
        """
        d = self.directions.shape[1]
        total = torch.stack([vector[:d].to(self.directions) for vector in vectors]).sum(0)
        return torch.cat([total.norm()[None], self.directions @ total]).double().numpy()


@dataclass(frozen=True)
class WithCanaries:
    """An executor for cohorts of real clients and canaries.

    Attributes:
      inner: the executor of the real clients.
      canaries: the canaries.
      clients: number of real clients; ids from this number on are canaries.
      clip: (initial) clipping norm; canaries send rows far above it.
      within: with adaptive clipping, the fraction of canaries whose rows are just below the round's
        clipping norm; None if it is fixed.
      nothing: the number in every entry of a row that adds zero.
    """

    inner: Executor
    canaries: Canaries
    clients: int
    clip: float
    within: float | None = None
    nothing: float = 0.0

    def answering(self, cohort: Cohort) -> Cohort:
        real, synthetic = self._parted(cohort)
        answering = self.inner.answering(replace(cohort, clients=real))
        if self.within is not None:  # any row would be counted by adaptive clipping
            synthetic = synthetic[self.canaries.signs[self._numbers(synthetic)] != 0]
        return replace(cohort, clients=np.concatenate([answering.clients, synthetic]))

    def chunks(self, exchange: Exchange, cohort: Cohort) -> Iterator[Chunk]:
        real, synthetic = self._parted(cohort)
        yield from self.inner.chunks(exchange, replace(cohort, clients=real))
        if len(synthetic):
            rows = self._rows(exchange, synthetic)
            yield Chunk(synthetic, rows, rows.new_ones(len(rows)))

    def root(self, exchange: Exchange, round: int) -> Tensor:
        return self.inner.root(exchange, round)

    def _parted(self, cohort: Cohort) -> tuple[Indices, Indices]:
        ids = cohort.clients
        return ids[ids < self.clients], ids[ids >= self.clients]

    def _numbers(self, synthetic: Indices) -> Indices:
        """Returns the numbers `[c]` of canaries at the population positions `synthetic` `[c]`."""
        return self.canaries.entered[synthetic - self.clients]

    def _rows(self, exchange: Exchange, synthetic: Indices) -> Tensor:
        """Returns the rows `[c, m]` of the canaries at population positions `synthetic` `[c]`."""
        numbers = self._numbers(synthetic)
        signs = self.canaries.signs[numbers]
        lengths = torch.from_numpy(signs * self._norms(exchange, numbers))
        directions = self.canaries.directions[torch.from_numpy(numbers)]
        rows = exchange.broadcast["params"].new_zeros(len(numbers), exchange.layout.length)
        rows[:, : directions.shape[1]] = (directions * lengths.to(directions)[:, None]).to(rows)
        rows[torch.from_numpy(signs == 0)] = self.nothing
        return rows

    def _norms(self, exchange: Exchange, numbers: Indices) -> NDArray[np.float64]:
        """Returns the norms of the rows of canaries `numbers` `[c]`, before clipping."""
        if self.within is None:
            return np.full(len(numbers), _LONG * self.clip)
        clip = float(exchange.bounds.get("clip", self.clip))
        within = np.floor((numbers + 1) * self.within) > np.floor(numbers * self.within)
        return np.where(within, _WITHIN, _LONG) * clip


def share_within_clip(mechanism: Mechanism, drawn: Witness) -> float | None:
    """Returns the fraction of canaries whose rows are below an adaptive clipping norm.

    Returns None if the clipping norm is fixed. `drawn` is the participation rule. The fraction is
    the target quantile if canaries can displace clients and the norm follows that quantile, else
    1/2.
    """
    if not mechanism.adaptive:
        return None
    if displaces_clients(drawn) and isinstance(mechanism, FollowsQuantile):
        return mechanism.clip_quantile
    return 0.5


@dataclass(frozen=True)
class WithoutCanaries:
    """A watcher of a run that receives only rows of real clients, whose ids are below `clients`."""

    inner: Watch
    clients: int

    def rows(
        self, round: int, ids: NDArray[np.int64], rows: Tensor, byzantine: NDArray[np.bool_]
    ) -> None:
        real = ids < self.clients
        self.inner.rows(round, ids[real], rows[torch.from_numpy(real)], byzantine[real])

    def judged(self, round: int, ids: NDArray[np.int64], rows: Tensor, aggregate: Tensor) -> None:
        real = ids < self.clients
        self.inner.judged(round, ids[real], rows[torch.from_numpy(real)], aggregate)

    def aggregate(self, round: int, aggregate: Tensor) -> None:
        self.inner.aggregate(round, aggregate)


@dataclass(frozen=True)
class ListeningStore:
    """A release store that also logs the inner products of releases with canaries' directions."""

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
    """Returns `world` with canaries appended to its real clients; `log` records the releases.

    Args:
      world: the run's executor, population and stores.
      clients: number of real clients.
      mechanism: the run's mechanism; its clipping norm determines the lengths of canaries' rows.
      rule: the aggregation rule, which determines the row that adds zero.
      drawn: the public participation rule.
      canaries: the canaries.
      log: records the products of releases with directions.
    """
    clip, within = float(mechanism.clip), share_within_clip(mechanism, drawn)
    nothing = number_of_nothing(rule)
    return replace(
        world,
        executor=WithCanaries(world.executor, canaries, clients, clip, within, nothing),
        population=canaries.among(world.population),
        store=ListeningStore(world.store, canaries, log),
        watch=WithoutCanaries(world.watch, clients) if world.watch else None,
    )
