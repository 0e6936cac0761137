"""A round's cohort and its answers: trained once, corrupted by attackers, kept for passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attacks.types import State
from defenses.types import RowRule, SumRule
from privfed.local.byzantine import Mask
from privfed.local.exchange import Exchange
from privfed.privacy.clipping import clip_rows
from privfed.privacy.mechanism import BoundedRows
from privfed.sampling.cohort import Cohort
from privfed.vector import Indices

if TYPE_CHECKING:
    from privfed.local.exchange import Chunk
    from privfed.round.algorithm import Algorithm, TrainingState
    from privfed.round.world import World


@dataclass
class Asking:
    """Asks the cohort of one round, chunk by chunk, as its clients answer: attackers among them."""

    algorithm: Algorithm
    world: World
    round: int
    state: TrainingState
    held: list[Chunk] = field(default_factory=list)
    root: Tensor | None = None
    plotted: State = field(init=False)
    """What attackers remember."""

    def __post_init__(self) -> None:
        self.plotted = self.state.attack

    def chunks(self, exchange: Exchange, here: Cohort) -> Iterator[Chunk]:
        """The answers of those who are `here`; of later passes, the same rows as before."""
        if exchange.task == "terms":
            yield from self.held
            return
        for chunk in self._corrupted(exchange, here):
            if exchange.task == "train" and self._passes > 1:
                self.held.append(chunk)
            self._show(exchange, chunk.ids, chunk.rows)
            yield chunk

    def rows(self, exchange: Exchange, here: Cohort) -> Tensor:
        """All answers at once, `[n, m]`, in the order of `here.clients`."""
        rows = self.world.executor.rows(exchange, here)
        rows = self._replaced(exchange, here.clients, rows)
        self._show(exchange, here.clients, rows)
        return rows

    def hostile(self, ids: Indices) -> Mask:
        """Which of `ids` `[c]` are byzantine in this round."""
        attackers = self.world.attackers
        if attackers is None:
            return np.zeros(len(ids), dtype=bool)
        return attackers.hostile(self.round)[ids]

    @property
    def unbounded(self) -> bool:
        """Whether there are attackers who keep to no bound."""
        return self.world.attackers is not None and self.world.attackers.unbounded

    def as_sent(self, ids: Indices, bounded: BoundedRows, free: Tensor) -> BoundedRows:
        """`bounded` rows `[c, m]`, but for attackers who keep to no bound: theirs are as `free`."""
        if self.world.attackers is None:
            return bounded
        if not self.unbounded:  # a sum without a bound cuts hostile rows to what it can hold
            free_of_bounds = bounded.bound == math.inf
            return replace(bounded, hostile=self.hostile(ids)) if free_of_bounds else bounded
        bare = self.algorithm.mechanism.trust == "client"  # nor do they add noise of their own
        return self.world.attackers.lengthened(self.hostile(ids), bounded, free, bare)

    def by_rule(self, rule: RowRule, rows: Tensor, exchange: Exchange) -> Tensor:
        """What `rule` makes of `rows` `[n, m]`: of fewer rows, it tolerates fewer hostile ones."""
        sources: dict[str, Callable[[], Any]] = {
            "generator": self._generator,
            "root": lambda: self._own(exchange),
            "center": lambda: self.state.rule["center"],
        }
        given = {name: sources[name]() for name in rule.needs()}
        return rule(rows, min(self.algorithm.byzantine, rule.most(len(rows))), **given)

    def _own(self, exchange: Exchange) -> Tensor:
        """The server's own update: trained once, however often attackers try the rule."""
        if self.root is None:
            self.root = self.world.executor.root(exchange, self.round)
        return self.root

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.world.streams.at("rule", self.round).integer())

    @property
    def _passes(self) -> int:
        rule = self.algorithm.rule
        return rule.passes if isinstance(rule, SumRule) else 1

    def _foreseen(self, rows: Tensor, hostile: int, exchange: Exchange) -> Tensor:
        """The aggregate of raw `rows` `[n, m]`, the first of them `hostile`, without noise.

        So an attacker may work it out who takes all clients to weigh alike, and keeps to the bound
        as little as it will.
        """
        rule = self.algorithm.rule
        if not isinstance(rule, SumRule):
            return self.by_rule(rule, self._clipped(rows, hostile), exchange)
        center = exchange.broadcast["center"]
        for _ in range(rule.passes):
            terms = rule.terms(rows, center)
            if self.unbounded:
                terms = torch.cat([rule.unbounded(rows[:hostile], center), terms[hostile:]])
            center = rule.step(center, self._clipped(terms, hostile).mean(0))
        return center

    def _clipped(self, rows: Tensor, hostile: int) -> Tensor:
        """As the mechanism clips; the first `hostile` ones not, where they keep to no bound."""
        mechanism = self.algorithm.mechanism
        if not mechanism.private:
            return rows
        clip = float(self.state.mechanism.get("clip", mechanism.clip))
        free = hostile if self.unbounded else 0
        return torch.cat([rows[:free], clip_rows(rows[free:], clip).rows])

    def _corrupted(self, exchange: Exchange, here: Cohort) -> Iterator[Chunk]:
        chunks = self.world.executor.chunks(exchange, here)
        attackers = self.world.attackers
        if attackers is None or not attackers.attack.corrupts or exchange.task != "train":
            yield from chunks
            return
        every = list(chunks)
        if not every:
            return
        ids = np.concatenate([chunk.ids for chunk in every])
        rows = self._replaced(exchange, ids, torch.cat([chunk.rows for chunk in every]))
        weights = torch.cat([chunk.weights for chunk in every])
        yield type(every[0])(ids, rows, weights)

    def _replaced(self, exchange: Exchange, ids: Indices, rows: Tensor) -> Tensor:
        attackers = self.world.attackers
        if attackers is None or exchange.task != "train":
            return rows
        hostile = self.hostile(ids)
        rows, self.plotted = attackers.corrupt(
            self.round,
            hostile,
            rows,
            self.plotted,
            lambda every: self._foreseen(every, int(hostile.sum()), exchange),
        )
        return rows

    def _show(self, exchange: Exchange, ids: Indices, rows: Tensor) -> None:
        if self.world.watch and exchange.task == "train":
            self.world.watch.rows(self.round, ids, rows, self.hostile(ids))
