"""Aggregation by sums: clients compute the rule's terms, and the server sees only their total."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from defenses.types import SumRule
from privfed.client.exchange import Chunk, Exchange
from privfed.core.answers import refuse_shape
from privfed.core.ranks import refuse_miscounted
from privfed.core.streams import Keys
from privfed.core.vector import Indices, Layout
from privfed.privacy.mechanism import (
    BoundedRows,
    BoundedSum,
    Mechanism,
    PublicState,
    SumWithNoise,
    draws_in_parts,
)
from privfed.round.updates import ClientUpdates
from privfed.sampling.cohort import Cohort


class BySums:
    """Computes and releases the sums of one round, under a rule that needs only sums (`SumRule`).

    `state` is the mechanism's public state after the last release.
    """

    def __init__(self, rule: SumRule, updates: ClientUpdates) -> None:
        self.state: PublicState = updates.state.mechanism
        self._rule, self._updates = rule, updates

    def release(self, exchange: Exchange, number: int) -> Tensor:
        """Bounds and sums the cohort's rows of one exchange, and adds noise to the sum.

        Under privacy, and if the server sums client states, all rows have the same constant weight
        and the divisor is a constant of the configuration. Otherwise a row is sent as (weight *
        row, weight), and the divisor is the summed weight.

        Args:
          exchange: the request to the cohort.
          number: index of the exchange in the round, from 0.

        Returns:
          The released average, shape [m], with m the layout's length plus `rule.extra`.

        Raises:
          Aborted: if the sum cannot be completed, for example because too few clients send.
        """
        updates, algorithm = self._updates, self._updates.algorithm
        ranks, mechanism = updates.world.ranks, algorithm.mechanism
        noise = updates.world.noise(algorithm, updates.cohort.round, number)
        total = self.sum(exchange, number)
        if ranks.count > 1:
            total = self._over_ranks(total, noise)
        divisor = updates.cohort.divisor
        if not algorithm.fixed_divisor:
            total, divisor = _parted(total, algorithm.wire(exchange.layout))

        def averaged() -> tuple[Tensor, PublicState]:
            released, state = mechanism.release(total, divisor, noise, self.state)
            shape = (exchange.layout.length + self._rule.extra,)
            refuse_shape(released, shape, mechanism, Mechanism.release)
            return released.cpu(), state

        released, self.state = ranks.first(averaged)
        return released.to(exchange.broadcast["params"].device)

    def _over_ranks(self, total: BoundedSum, noise: Keys) -> BoundedSum:
        """Returns `total` summed over all ranks; each rank first adds its part of the noise.

        Noise that cannot be drawn in parts is drawn later, by `release` on rank 0. Raises
        `RankLost` if only some ranks have drawn noise.
        """
        ranks, mechanism = self._updates.world.ranks, self._updates.algorithm.mechanism
        if draws_in_parts(mechanism):
            total = mechanism.noised(total, noise, self.state, ranks.part(len(total.total)))
        drawn = isinstance(total, SumWithNoise)
        times = torch.zeros(ranks.count, dtype=torch.int64)
        times[ranks.rank] = drawn
        refuse_miscounted(ranks, times, int(drawn))
        return replace(total, total=ranks.reduce(total.total))

    def sum(self, exchange: Exchange, number: int) -> BoundedSum:
        """Returns the bounded sum `[m]` of the rows of the round's exchange `number`, from 0.

        The rows are those of remote sites, or of clients that are trained here.

        With several ranks (processes), it covers only the clients that this rank trains. The noise
        of clients or sites is included, central noise is not.
        """
        world = self._updates.world
        if world.sites:
            total = world.sites.sum(self._updates.cohort.round, number, exchange, self.state)
        else:
            total = self._summed_here(exchange, number)
        return replace(total, total=total.total.to(exchange.broadcast["params"].device))

    def _summed_here(self, exchange: Exchange, number: int) -> BoundedSum:
        """Returns the sum of the messages of the clients that this process trains."""
        updates, mechanism = self._updates, self._updates.algorithm.mechanism
        wire = updates.algorithm.wire(exchange.layout)
        present, leaves = updates.present(number)
        session = updates.session(number, model_hash(exchange), leaves)
        encoding, length = mechanism.encoding(self.state), mechanism.width(wire)
        accumulator = updates.algorithm.summation.open(session, length, encoding)
        for sent in self.bounded(exchange, number, present):
            accumulator.add(*sent)
            del sent  # frees memory before the next chunk trains
        return accumulator.close()

    def bounded(
        self, exchange: Exchange, number: int, present: Cohort
    ) -> Iterator[tuple[Indices, BoundedRows]]:
        """Yields, in chunks, clients `[c]` and their bounded messages for exchange `number`."""
        updates, predicted_aggregate = self._updates, partial(self._predicted_aggregate, exchange)
        wire = updates.algorithm.wire(exchange.layout)

        def sent(chunk: Chunk) -> tuple[Indices, BoundedRows]:
            rows = self._terms(chunk, exchange)
            return chunk.ids, updates.bounded(chunk.ids, rows, wire, number, self.state)

        return map(sent, updates.chunks(exchange, present, predicted_aggregate))

    def _terms(self, chunk: Chunk, exchange: Exchange) -> Tensor:
        """Returns the rule's terms `[c, m]` of the rows in `chunk`, which are then summed.

        If weights vary, terms are multiplied by them, and the weight is one more column. If they
        are constant and a client may be at up to s sites, every row has weight 1 / s.
        """
        center = exchange.broadcast.get("center", chunk.rows.new_zeros(()))
        parts = self._parts
        sent = self._updates.algorithm.objective.admitted(chunk.rows)
        rows = self._rule.terms(sent / parts if parts > 1 else sent, center)
        if self._updates.unbounded:
            byzantine = self._updates.byzantine_mask(chunk.ids, rows)
            rows = torch.where(byzantine[:, None], self._rule.unbounded(chunk.rows, center), rows)
        if self._updates.algorithm.fixed_divisor:
            return rows
        weights, weighted = chunk.weights[:, None], rows.new_empty(len(rows), rows.shape[1] + 1)
        torch.mul(weights, rows, out=weighted[:, :-1])
        weighted[:, -1:] = weights
        return weighted

    @property
    def _parts(self) -> int:
        """Upper bound on the number of sites with a row of one client; 1 if weights vary."""
        algorithm = self._updates.algorithm
        return algorithm.sites_per_client if algorithm.fixed_divisor else 1

    def _predicted_aggregate(
        self, exchange: Exchange, rows: Tensor, byzantine: int, ids: Indices | None
    ) -> Tensor:
        """Returns the aggregate without noise, as attackers predict it from `rows` `[n, m]`.

        The first `byzantine` rows are the attackers'. They have the weights that attackers claim,
        and are not clipped if attackers ignore the bound.
        """
        center, rule = exchange.broadcast.get("center", rows.new_zeros(rows.shape[1])), self._rule
        admitted = self._updates.algorithm.objective.admitted(rows)
        for _ in range(rule.passes):
            terms = rule.terms(admitted, center)
            if self._updates.unbounded:
                terms = torch.cat([rule.unbounded(rows[:byzantine], center), terms[byzantine:]])
            average = self._updates.averaged(self._updates.clipped(terms, byzantine), byzantine)
            center = rule.step(center, average)
        return center


def _parted(total: BoundedSum, wire: Layout) -> tuple[BoundedSum, float]:
    """Returns the sum of weighted rows, and the sum of weights (the last value of `total`).

    If the latter is not positive, returns zeros and 1.
    """
    weight, rows = float(wire.view(total.total, "weight")), total.total[:-1]
    if weight <= 0.0:  # no client sent anything: a zero average changes nothing
        return replace(total, total=torch.zeros_like(rows)), 1.0
    return replace(total, total=rows), weight


def model_hash(exchange: Exchange) -> bytes:
    """Returns the SHA-256 digest, 32 bytes, of the model that an exchange broadcasts."""
    params = exchange.broadcast["params"].cpu().contiguous().numpy()
    return hashlib.sha256(params.data).digest()
