"""The answers of a round's cohort: trained once, corrupted by attackers, bounded by each client."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from defenses.finite import usable
from privfed.client.byzantine import Attackers, Mask
from privfed.client.exchange import Chunk, Exchange
from privfed.core.vector import Indices, Layout
from privfed.privacy.clipping import clip_rows, count_turned
from privfed.privacy.mechanism import BoundedRows, PublicState
from privfed.round.algorithm import Algorithm, TrainingState
from privfed.round.world import World
from privfed.sampling.cohort import Cohort
from privfed.secure.limits import SENDS, Leaves, leaving
from privfed.secure.summation import Session

Foreseen = Callable[[Tensor, int, Indices | None], Tensor]
"""The aggregate of rows `[n, m]`, the first so many of them hostile, as attackers work it out; of
clients `[n]`, where it is clear whose they are."""


@dataclass
class ClientUpdates:
    """What the clients of one `cohort` send, chunk by chunk: attackers are among them.

    A client's row goes one way: it is trained, shown to who may watch a simulation, made into what
    the rule sums, bounded by the mechanism, and sent.
    """

    algorithm: Algorithm
    world: World
    state: TrainingState
    cohort: Cohort
    _trained: list[Chunk] = field(default_factory=list)
    """The rows of the first pass, for those that come after it."""

    def __post_init__(self) -> None:
        self.attack_memory = self.state.attack
        """What attackers remember."""
        exclusions, round = self.world.exclusions, self.cohort.round
        excluded = self.world.ranks.first(lambda: exclusions.before(round))
        self._excluded = np.array(sorted(excluded), dtype=np.int64)

    def present(self, number: int) -> tuple[Cohort, Indices]:
        """Those whose rows of exchange `number` are added, and when each party leaves `[n]`.

        Parties are the cohort, or all sites, whoever was drawn there. Passes ask about the same
        rows: who sends none in the first of them sends none in any. Who was proved to lie in an
        earlier round is drawn as ever, and counts as one that leaves before sharing: that moves no
        coin, no rate, no divisor and no other party (PRIVACY, section 4).
        """
        first, dropout = min(number, self.algorithm.objective.exchanges - 1), self.algorithm.dropout
        identities = self._party_numbers()
        keys = self.world.streams.at(f"dropout/{first}", self.cohort.round, identities)
        leaves = leaving(dropout, keys, len(identities))
        liars = np.isin(self._parties, self._excluded)
        leaves = np.where(liars, int(Leaves.BEFORE_SHARING), leaves)
        if not leaves.any():
            return self.cohort, leaves
        sends = np.isin(leaves, SENDS)
        if self.algorithm.sites:
            sends = sends[self.site_of[self.cohort.clients]]
        return replace(self.cohort, clients=self.cohort.clients[sends]), leaves

    @property
    def site_of(self) -> Indices:
        """The site `[population]` of each client. Raises `ValueError` where there are no sites."""
        sites = self.world.people.sites
        if sites is None:
            raise ValueError("sites are the parties, and nobody knows which site holds a client")
        return sites

    def session(self, number: int, model_hash: bytes, leaves: Indices) -> Session:
        """What the sum of exchange `number` is bound to; `leaves` `[n]` as of its parties."""
        cohort, streams = self.cohort, self.world.streams
        if not self.algorithm.sites:
            return Session(
                cohort.round,
                number,
                model_hash,
                cohort.clients,
                leaves,
                streams,
                accuse=self.world.exclusions.note,
            )
        return Session(
            cohort.round,
            number,
            model_hash,
            self._parties,
            leaves,
            streams,
            sites=self.site_of,
            identities=self.world.people.identities,
            accuse=self.world.exclusions.note,
        )

    @property
    def _parties(self) -> Indices:
        """The parties `[n]` of a sum, by their places: the cohort, or all sites."""
        sites = self.algorithm.sites
        return np.arange(sites) if sites else self.cohort.clients

    def _party_numbers(self) -> Indices:
        """The numbers `[n]` by which the parties of a sum drop out."""
        if self.algorithm.sites:
            return np.arange(self.algorithm.sites)
        return self.world.people.identities[self.cohort.clients]

    def chunks(self, exchange: Exchange, present: Cohort, foreseen: Foreseen) -> Iterator[Chunk]:
        """The raw answers of those `present`; of later passes, the same rows as before.

        Attackers know the aggregate as `foreseen` gives it.
        """
        if exchange.task == "terms":
            yield from self._trained
            return
        chunks = self._corrupted(exchange, present, foreseen)
        # By `map`: no name holds the rows of one chunk while the next one trains.
        yield from map(self._watched_rows, chunks) if exchange.task == "train" else chunks

    def _watched_rows(self, chunk: Chunk) -> Chunk:
        """The `chunk`, kept for later passes and shown to who may watch a simulation."""
        if self.algorithm.rule.uploads > 1:
            self._trained.append(chunk)
        if self.world.watch:
            hostile = self.hostile(chunk.ids)
            self.world.watch.rows(self.cohort.round, chunk.ids, chunk.rows, hostile)
        return chunk

    def bounded(
        self, ids: Indices, rows: Tensor, layout: Layout, number: int, state: PublicState
    ) -> BoundedRows:
        """Messages `[c, m]` of clients `ids` as they are sent: bounded, but for hostile ones."""
        keys = self.world.streams.at(f"noise/client/{number}", self.cohort.round, ids)
        bounded = self.algorithm.mechanism.bound(rows, layout, keys, state)
        attackers = self.world.attackers
        if attackers is None:
            return bounded
        if self.algorithm.mechanism.adaptive and attackers.lies.within is not None:
            liars = self.hostile_rows(ids, rows)
            bounded = count_turned(bounded, liars, attackers.lies.within)
        if not attackers.unbounded:  # a sum without a bound cuts hostile rows to what it can hold
            free = bounded.bound == math.inf
            return replace(bounded, hostile=self.hostile(ids)) if free else bounded
        noiseless = self.algorithm.mechanism.trust == "client"  # nor do they add noise of their own
        return attackers.lengthened(self.hostile(ids), bounded, rows, noiseless)

    def hostile(self, ids: Indices) -> Mask:
        """Which of clients `ids` `[c]` are byzantine in this round."""
        attackers = self.world.attackers
        if attackers is None:
            return np.zeros(len(ids), dtype=bool)
        return attackers.hostile(self.cohort.round)[ids]

    def hostile_rows(self, ids: Indices, rows: Tensor) -> Tensor:
        """Which of clients `ids` `[c]` are hostile, as `hostile` says, on the device of `rows`."""
        return torch.from_numpy(self.hostile(ids)).to(rows.device)

    @property
    def unbounded(self) -> bool:
        """Whether there are attackers who keep to no bound."""
        return self.world.attackers is not None and self.world.attackers.unbounded

    def clipped(self, rows: Tensor, hostile: int) -> Tensor:
        """Rows `[n, m]` as the mechanism clips them, without noise.

        The first `hostile` ones are not, where they keep to no bound.
        """
        mechanism = self.algorithm.mechanism
        if not mechanism.private:
            return rows
        clip = float(self.state.mechanism.get("clip", mechanism.clip))
        free = hostile if self.unbounded else 0
        return torch.cat([rows[:free], clip_rows(rows[free:], clip).rows])

    def averaged(self, terms: Tensor, hostile: int) -> Tensor:
        """The mean of `terms` `[n, m]`, the first `hostile` of them weighing what they claim."""
        attackers = self.world.attackers
        claimed = attackers.lies.weight if attackers else 1.0
        if claimed == 1.0 or self.algorithm.fixed_divisor:
            return terms.mean(0)
        weights = terms.new_ones(len(terms))
        weights[:hostile] = claimed
        return weights @ terms / weights.sum().clamp(min=1e-30)

    def _corrupted(
        self, exchange: Exchange, present: Cohort, foreseen: Foreseen
    ) -> Iterator[Chunk]:
        """Answers with those of attackers in their places, who wait for all others' first."""
        attackers = self.world.attackers
        if attackers is None or exchange.task == "measure":
            yield from self.world.executor.chunks(exchange, present)
            return
        if exchange.task == "train":
            exchange = self._watched(exchange, attackers)
        claimed = map(self._claimed, self.world.executor.chunks(exchange, present))
        if not attackers.replace_rows(exchange.task):
            yield from claimed
        elif answers := list(claimed):
            yield self._replaced(_joined(answers), attackers, exchange, foreseen)

    def _watched(self, exchange: Exchange, attackers: Attackers) -> Exchange:
        """The exchange with what attackers remember, now that they see the model it broadcasts."""
        params = exchange.broadcast["params"]
        self.attack_memory = attackers.watching(params, self.attack_memory)
        return replace(exchange, remembered=self.attack_memory)

    def _replaced(
        self, answer: Chunk, attackers: Attackers, exchange: Exchange, foreseen: Foreseen
    ) -> Chunk:
        """The answer of a whole cohort with the rows that attackers send in place of theirs."""
        bad = self.hostile(answer.ids)
        part = _Part(exchange.layout, "" if attackers.lies.everything else "delta")
        shown, ids = part.of(answer.rows), answer.ids

        def tried(rows: Tensor) -> Tensor:
            whose = _whose(len(rows), shown, ids, bad)
            return part.of(foreseen(part.alone(rows), int(bad.sum()), whose))

        sent, self.attack_memory = attackers.corrupt(
            self.cohort.round, ids, shown, self.attack_memory, tried, exchange.task
        )
        return replace(answer, rows=part.put(sent, answer.rows))

    def _claimed(self, chunk: Chunk) -> Chunk:
        """A chunk with the weights that attackers claim."""
        attackers = self.world.attackers
        if attackers is None or attackers.lies.weight == 1.0:
            return chunk
        liars = self.hostile_rows(chunk.ids, chunk.weights)
        return replace(chunk, weights=attackers.lies.claimed(chunk.weights, liars))


@dataclass(frozen=True)
class _Part:
    """The part `name` of rows with this `layout`; without a name all of it."""

    layout: Layout
    name: str

    def of(self, rows: Tensor) -> Tensor:
        """The part `[..., p]` of `rows` `[..., m]`."""
        return self.layout.view(rows, self.name) if self.name else rows

    def put(self, part: Tensor, rows: Tensor) -> Tensor:
        """Rows `[n, m]` with this `part` `[n, p]`; not in place."""
        if not self.name:
            return part
        rows = rows.clone()
        self.of(rows).copy_(part)
        return rows

    def alone(self, part: Tensor) -> Tensor:
        """Rows `[n, m]` of which all but the `part` `[n, p]` is zero."""
        return self.put(part, part.new_zeros(len(part), self.layout.length))


def _whose(count: int, rows: Tensor, ids: Indices, hostile: Mask) -> Indices | None:
    """The clients `[count]` of rows that an attacker tries the rule on; None if it is unclear.

    They are the hostile ones of clients `ids` `[n]`, and then the honest ones, or those whose
    `rows` `[n, m]` can be computed with: attackers leave others out, as rules do.
    """
    honest = ~hostile
    if count < len(hostile):
        honest = honest & usable(rows).cpu().numpy()
    if count != int(hostile.sum() + honest.sum()):
        return None
    return np.concatenate([ids[hostile], ids[honest]])


def _joined(chunks: list[Chunk]) -> Chunk:
    """All answers at once, in the order of clients' numbers."""
    ids = np.concatenate([chunk.ids for chunk in chunks])
    order = np.argsort(ids)
    return Chunk(
        ids[order],
        torch.cat([chunk.rows for chunk in chunks])[order],
        torch.cat([chunk.weights for chunk in chunks])[order],
    )
