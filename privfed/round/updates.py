"""Computes the rows that a round's cohort sends: trained or made by attackers, then bounded."""

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

AggregatePredictor = Callable[[Tensor, int, Indices | None], Tensor]
"""Maps rows `[n, m]`, the number of Byzantine rows (which come first) and the clients `[n]` of the
rows, if known, to the rule's aggregate of these rows as attackers predict it.
"""


@dataclass
class ClientUpdates:
    """Computes the messages of the clients of one `cohort`, including attackers, in chunks.

    A client's row is trained, passed to the observer of a simulation, converted to the terms that a
    rule sums (`SumRule.terms`, such as signs), bounded by the mechanism, and sent.
    """

    algorithm: Algorithm
    world: World
    state: TrainingState
    cohort: Cohort
    _trained: list[Chunk] = field(default_factory=list)
    """The trained rows, if the rule sums them in several passes."""

    def __post_init__(self) -> None:
        self.attack_memory = self.state.attack
        """Memory of simulated attackers after the last exchange."""
        exclusions, round = self.world.exclusions, self.cohort.round
        excluded = self.world.ranks.first(lambda: exclusions.before(round))
        self._excluded = np.array(sorted(excluded), dtype=np.int64)

    def present(self, number: int) -> tuple[Cohort, Indices]:
        """Returns the clients that send in exchange `number`, and each party's dropout stage `[n]`.

        Parties of a sum are the clients of the cohort, or all sites, whatever clients were sampled
        at these. All passes of a rule use the same rows: a client that drops out of the first pass
        sends no rows in later passes. Clients that were excluded in an earlier round are still
        sampled, but treated as dropouts before sharing. This leaves the sampling rate, the divisor
        and the other parties' randomness unchanged (rules of proof, section 4).
        """
        first, dropout = min(number, self.algorithm.objective.exchanges - 1), self.algorithm.dropout
        identities = self._party_numbers()
        keys = self.world.streams.at(f"dropout/{first}", self.cohort.round, identities)
        leaves = leaving(dropout, keys, len(identities))
        excluded = np.isin(self._parties, self._excluded)
        leaves = np.where(excluded, int(Leaves.BEFORE_SHARING), leaves)
        if not leaves.any():
            return self.cohort, leaves
        sends = np.isin(leaves, SENDS)
        if self.algorithm.sites:
            sends = sends[self.site_of[self.cohort.clients]]
        return replace(self.cohort, clients=self.cohort.clients[sends]), leaves

    @property
    def site_of(self) -> Indices:
        """The site `[N]` of each client of the population. Raises `ValueError` if it has none."""
        sites = self.world.population.sites
        if sites is None:
            raise ValueError("sites are the parties, but the site of each client is unknown")
        return sites

    def session(self, number: int, model_hash: bytes, leaves: Indices) -> Session:
        """Returns the context of the sum of exchange `number`, with dropout stages `leaves`."""
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
            identities=self.world.population.identities,
            accuse=self.world.exclusions.note,
        )

    @property
    def _parties(self) -> Indices:
        """Indices of the parties `[n]` of a sum: the cohort, or all sites."""
        sites = self.algorithm.sites
        return np.arange(sites) if sites else self.cohort.clients

    def _party_numbers(self) -> Indices:
        """Returns the identities `[n]` of a sum's parties, by which their dropouts are drawn."""
        if self.algorithm.sites:
            return np.arange(self.algorithm.sites)
        return self.world.population.identities[self.cohort.clients]

    def chunks(
        self, exchange: Exchange, present: Cohort, predicted_aggregate: AggregatePredictor
    ) -> Iterator[Chunk]:
        """Yields the raw rows of clients `present`, in chunks; later passes get the same rows.

        Attackers may call `predicted_aggregate` to try rows on the rule before they send them.
        """
        if exchange.task == "terms":
            yield from self._trained
            return
        chunks = self._corrupted(exchange, present, predicted_aggregate)
        # With `map`, no variable keeps the rows of a chunk in memory while the next one trains.
        yield from map(self._watched_rows, chunks) if exchange.task == "train" else chunks

    def _watched_rows(self, chunk: Chunk) -> Chunk:
        """Stores the `chunk` if the rule has later passes, shows it to the observer, returns it."""
        if self.algorithm.rule.uploads > 1:
            self._trained.append(chunk)
        if self.world.watch:
            byzantine = self.byzantine(chunk.ids)
            self.world.watch.rows(self.cohort.round, chunk.ids, chunk.rows, byzantine)
        return chunk

    def bounded(
        self, ids: Indices, rows: Tensor, layout: Layout, number: int, state: PublicState
    ) -> BoundedRows:
        """Returns the messages `[c, m]` of clients `ids`; attackers' may exceed the norm bound."""
        keys = self.world.streams.at(f"noise/client/{number}", self.cohort.round, ids)
        bounded = self.algorithm.mechanism.bound(
            self._damped(ids, rows, layout), layout, keys, state
        )
        attackers = self.world.attackers
        if attackers is None:
            return bounded
        if self.algorithm.mechanism.adaptive and attackers.false_claims.within is not None:
            byzantine = self.byzantine_mask(ids, rows)
            bounded = count_turned(bounded, byzantine, attackers.false_claims.within)
        if not attackers.unbounded:  # unbounded sums cut Byzantine rows to their range
            free = bounded.bound == math.inf
            return replace(bounded, byzantine=self.byzantine(ids)) if free else bounded
        noiseless = self.algorithm.mechanism.trust == "client"  # attackers then omit the noise, too
        return attackers.lengthened(self.byzantine(ids), bounded, rows, noiseless)

    def _damped(self, ids: Indices, rows: Tensor, layout: Layout) -> Tensor:
        """Returns rows `[c, m]` of clients `ids`, multiplied by their weights in the cohort.

        Under privacy a row is clipped before, so that its weight shortens it even if its norm was
        above the clip. The mechanism clips the result again: no weight can exceed the clip. Rows of
        weight 1, and the aggregation weights that clients send, are unchanged.
        """
        if self.cohort.weights is None:
            return rows
        factors = torch.from_numpy(self.cohort.weights[ids]).to(rows)[:, None]
        damped = torch.where(factors == 1.0, rows, factors * self.clipped(rows, 0))
        if "weight" in dict(layout.parts):
            layout.view(damped, "weight").copy_(layout.view(rows, "weight"))
        return damped

    def byzantine(self, ids: Indices) -> Mask:
        """Returns a mask `[c]` of the clients `ids` that are Byzantine in this round."""
        attackers = self.world.attackers
        if attackers is None:
            return np.zeros(len(ids), dtype=bool)
        return attackers.byzantine(self.cohort.round)[ids]

    def byzantine_mask(self, ids: Indices, rows: Tensor) -> Tensor:
        """Returns the mask `byzantine(ids)` `[c]` on the device of `rows`."""
        return torch.from_numpy(self.byzantine(ids)).to(rows.device)

    @property
    def unbounded(self) -> bool:
        """Whether attackers are simulated and ignore the norm bound."""
        return self.world.attackers is not None and self.world.attackers.unbounded

    def clipped(self, rows: Tensor, byzantine: int) -> Tensor:
        """Returns rows `[n, m]` as the mechanism clips them, without noise.

        The first `byzantine` rows are not clipped if attackers ignore the bound.
        """
        mechanism = self.algorithm.mechanism
        if not mechanism.private:
            return rows
        clip = float(self.state.mechanism.get("clip", mechanism.clip))
        free = byzantine if self.unbounded else 0
        return torch.cat([rows[:free], clip_rows(rows[free:], clip).rows])

    def averaged(self, terms: Tensor, byzantine: int) -> Tensor:
        """Returns the mean `[m]` of `terms` `[n, m]`, weighted unless weights are constant.

        The first `byzantine` terms have the weight that attackers claim, the others weight one.
        """
        attackers = self.world.attackers
        claimed = attackers.false_claims.weight if attackers else 1.0
        if claimed == 1.0 or self.algorithm.fixed_divisor:
            return terms.mean(0)
        weights = terms.new_ones(len(terms))
        weights[:byzantine] = claimed
        return weights @ terms / weights.sum().clamp(min=1e-30)

    def _corrupted(
        self, exchange: Exchange, present: Cohort, predicted_aggregate: AggregatePredictor
    ) -> Iterator[Chunk]:
        """Yields all clients' rows, in one chunk if the attack replaces rows: it reads all rows.

        Rows of measurements (task "measure") are not attacked.
        """
        attackers = self.world.attackers
        if attackers is None or exchange.task == "measure":
            yield from self._answers(exchange, present)
            return
        if exchange.task == "train":
            exchange = self._watched(exchange, attackers)
        claimed = map(self._claimed, self._answers(exchange, present))
        if not attackers.replace_rows(exchange.task):
            yield from claimed
        elif answers := list(claimed):
            yield self._replaced(_joined(answers), attackers, exchange, predicted_aggregate)

    def _answers(self, exchange: Exchange, present: Cohort) -> Iterator[Chunk]:
        """Yields the answers of clients `present`, each at the model that it received.

        Clients that received the same model train together; the newest model is first.
        """
        if present.staleness is None:
            yield from self.world.executor.chunks(exchange, present)
            return
        staleness = present.staleness[present.clients]
        for rounds in np.unique(staleness).tolist():
            alike = replace(present, clients=present.clients[staleness == rounds])
            received = {**exchange.broadcast, "params": self.state.model_before(rounds)}
            yield from self.world.executor.chunks(replace(exchange, broadcast=received), alike)

    def _watched(self, exchange: Exchange, attackers: Attackers) -> Exchange:
        """Returns the exchange with the attackers' memory, updated by the exchange's model."""
        params = exchange.broadcast["params"]
        self.attack_memory = attackers.watching(params, self.attack_memory)
        return replace(exchange, remembered=self.attack_memory)

    def _replaced(
        self,
        answer: Chunk,
        attackers: Attackers,
        exchange: Exchange,
        predicted_aggregate: AggregatePredictor,
    ) -> Chunk:
        """Returns the cohort's rows, `answer`, with those of attackers replaced."""
        bad = self.byzantine(answer.ids)
        part = _Part(exchange.layout, "" if attackers.false_claims.everything else "delta")
        shown, ids = part.of(answer.rows), answer.ids

        def tried(rows: Tensor) -> Tensor:
            whose = _whose(len(rows), shown, ids, bad)
            return part.of(predicted_aggregate(part.alone(rows), int(bad.sum()), whose))

        sent, self.attack_memory = attackers.corrupt(
            self.cohort.round, ids, shown, self.attack_memory, tried, exchange.task
        )
        return replace(answer, rows=part.put(sent, answer.rows))

    def _claimed(self, chunk: Chunk) -> Chunk:
        """Returns the chunk with attackers' weights replaced by those that they claim."""
        attackers = self.world.attackers
        if attackers is None or attackers.false_claims.weight == 1.0:
            return chunk
        byzantine = self.byzantine_mask(chunk.ids, chunk.weights)
        return replace(chunk, weights=attackers.false_claims.claimed(chunk.weights, byzantine))


@dataclass(frozen=True)
class _Part:
    """The segment `name` of rows with this `layout`; if `name` is empty, the complete row."""

    layout: Layout
    name: str

    def of(self, rows: Tensor) -> Tensor:
        """Returns the segment `[..., p]` of `rows` `[..., m]`, as a view."""
        return self.layout.view(rows, self.name) if self.name else rows

    def put(self, part: Tensor, rows: Tensor) -> Tensor:
        """Returns rows like `rows` `[n, m]`, with the segment replaced by `part` `[n, p]`."""
        if not self.name:
            return part
        rows = rows.clone()
        self.of(rows).copy_(part)
        return rows

    def alone(self, part: Tensor) -> Tensor:
        """Returns rows `[n, m]` with `part` `[n, p]` as the segment, and zeros elsewhere."""
        return self.put(part, part.new_zeros(len(part), self.layout.length))


def _whose(count: int, rows: Tensor, ids: Indices, byzantine: Mask) -> Indices | None:
    """Returns the clients `[count]` of the rows that an attacker passes to the rule, if known.

    The rows are those of the Byzantine clients among `ids` `[n]`, followed by those of the honest
    clients: all of them, or only those whose `rows` `[n, m]` rules use (`defenses.finite.usable`).
    Returns None if `count` fits neither.
    """
    honest = ~byzantine
    if count < len(byzantine):
        honest = honest & usable(rows).cpu().numpy()
    if count != int(byzantine.sum() + honest.sum()):
        return None
    return np.concatenate([ids[byzantine], ids[honest]])


def _joined(chunks: list[Chunk]) -> Chunk:
    """Returns all chunks as one, in the order of client indices."""
    ids = np.concatenate([chunk.ids for chunk in chunks])
    order = np.argsort(ids)
    return Chunk(
        ids[order],
        torch.cat([chunk.rows for chunk in chunks])[order],
        torch.cat([chunk.weights for chunk in chunks])[order],
    )
