"""Aggregation by a rule that sees every client's row."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from defenses.types import RowRule
from privfed.local.exchange import Exchange
from privfed.privacy.mechanism import PublicState
from privfed.round.updates import ClientUpdates
from privfed.sampling.cohort import Cohort


class ByRows:
    """Releases what a rule makes of bounded rows. `state` is the mechanism's public one."""

    def __init__(self, rule: RowRule, updates: ClientUpdates) -> None:
        self.state: PublicState = updates.state.mechanism
        self._rule, self._updates = rule, updates
        self._root: Tensor | None = None

    def release(self, exchange: Exchange, number: int) -> Tensor:
        """Bound the cohort's answers to exchange `number`, and aggregate them: `[m]`.

        Where rows have noise of their own, whatever is made of them is post-processing.
        """
        present, _ = self._updates.present(number)
        rows = self._rows(exchange, present)
        ranks = self._updates.world.ranks
        return ranks.first(lambda: self._aggregate(rows, present, exchange, number)).to(rows.device)

    def _rows(self, exchange: Exchange, present: Cohort) -> Tensor:
        """All answers `[n, m]`, in the order of clients' numbers."""
        params = exchange.broadcast["params"]
        rows = params.new_zeros(len(present.clients), exchange.layout.length)
        foreseen = partial(self._foreseen, exchange)
        for chunk in self._updates.chunks(exchange, present, foreseen):
            rows[torch.from_numpy(np.searchsorted(present.clients, chunk.ids))] = chunk.rows
        return self._updates.world.executor.reduce(rows)

    def _aggregate(self, rows: Tensor, present: Cohort, exchange: Exchange, number: int) -> Tensor:
        ids, layout = present.clients, exchange.layout
        sent = self._updates.bounded(ids, rows, layout, number, self.state)
        return self._by_rule(sent.rows, exchange).cpu()

    def _by_rule(self, rows: Tensor, exchange: Exchange) -> Tensor:
        """What the rule makes of `rows` `[n, m]`: of fewer, it tolerates fewer hostile ones."""
        sources: dict[str, Callable[[], Any]] = {
            "generator": self._generator,
            "root": lambda: self._root_update(exchange),
            "center": lambda: self._updates.state.rule["center"],
            "layers": lambda: torch.tensor(self._updates.world.layers),
        }
        given = {name: sources[name]() for name in self._rule.needs()}
        byzantine = min(self._updates.algorithm.byzantine, self._rule.most(len(rows)))
        return self._rule(rows, byzantine, **given)

    def _foreseen(self, exchange: Exchange, rows: Tensor, hostile: int) -> Tensor:
        """The aggregate without noise, as an attacker works it out that knows the rule."""
        return self._by_rule(self._updates.clipped(rows, hostile), exchange)

    def _root_update(self, exchange: Exchange) -> Tensor:
        """The server's own update: trained once, however often attackers try the rule."""
        if self._root is None:
            self._root = self._updates.world.executor.root(exchange, self._updates.cohort.round)
        return self._root

    def _generator(self) -> torch.Generator:
        keys = self._updates.world.streams.at("rule", self._updates.cohort.round)
        return torch.Generator().manual_seed(keys.integer())
