"""Aggregation by a rule that sees every client's row.

*A rule's memory of clients* (`defenses.history`) is stored under private/, as secret as rows are.
The memory costs no privacy under local noise (unit: one client; replace-one): each round releases
and charges all messages with their senders, adaptively, without amplification by subsampling.
Histories are functions of the noised messages only, so aggregates and broadcasts are functions of
released values. Under central noise and secure sums, rules on rows are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from defenses.history import Histories, HistoryRule
from defenses.types import RowRule
from privfed.client.exchange import Exchange
from privfed.core.errors import Refused
from privfed.core.vector import Indices
from privfed.privacy.mechanism import PublicState
from privfed.round.updates import ClientUpdates
from privfed.sampling.cohort import Cohort


class ByRows:
    """Aggregates the bounded rows of a round by a rule that sees each row, and releases the result.

    `state` is the mechanism's public state.
    """

    def __init__(self, rule: RowRule, updates: ClientUpdates) -> None:
        self.state: PublicState = updates.state.mechanism
        self._rule, self._updates = rule, updates
        self._root: Tensor | None = None
        self._gathered: Tensor | None = None

    def release(self, exchange: Exchange, number: int) -> Tensor:
        """Returns the rule's aggregate `[m]` of the bounded rows sent in exchange `number`.

        If rows are noised individually, the aggregation is post-processing.
        """
        present, _ = self._updates.present(number)
        rows = self._rows(exchange, present)
        ranks = self._updates.world.ranks
        return ranks.first(lambda: self._aggregate(rows, present, exchange, number)).to(rows.device)

    def _rows(self, exchange: Exchange, present: Cohort) -> Tensor:
        """Returns the raw rows `[n, m]` of the clients in `present`, in their order."""
        params = exchange.broadcast["params"]
        rows = params.new_zeros(len(present.clients), exchange.layout.length)
        predicted_aggregate = partial(self._predicted_aggregate, exchange)
        for chunk in self._updates.chunks(exchange, present, predicted_aggregate):
            rows[torch.from_numpy(np.searchsorted(present.clients, chunk.ids))] = chunk.rows
        return self._updates.world.ranks.reduce(rows)

    def _aggregate(self, rows: Tensor, present: Cohort, exchange: Exchange, number: int) -> Tensor:
        """Bounds `rows` and returns the rule's aggregate `[m]`; stores the rule's new memory."""
        ids, layout, histories = present.clients, exchange.layout, self._updates.world.histories
        sent = self._updates.bounded(ids, rows, layout, number, self.state)
        aggregate, remembered = self._by_rule(sent.rows, exchange, ids)
        if remembered is not None and histories is not None:
            histories.scatter(ids, remembered)
        watch = self._updates.world.watch
        if watch and exchange.task == "train":
            watch.judged(self._updates.cohort.round, ids, sent.rows, aggregate)
        return aggregate.cpu()

    def _by_rule(
        self,
        rows: Tensor,
        exchange: Exchange,
        ids: Indices | None,
        predicted_aggregate: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the rule's aggregate of `rows` `[n, m]` of clients `ids`, and any new memory.

        The memory is None if the rule stores none. The rule assumes the configured number of
        Byzantine clients, but at most the number that it tolerates for n rows. With
        `predicted_aggregate`, an attacker calls the rule, which then draws from another random
        stream.
        """
        sources: dict[str, Callable[[], Any]] = {
            "generator": lambda: self._generator(predicted_aggregate),
            "root": lambda: self._root_update(exchange),
            "center": lambda: self._updates.state.rule["center"],
            "model": lambda: exchange.broadcast["params"],
            "layers": lambda: torch.tensor(self._updates.world.layers),
            "histories": lambda: self._histories(exchange, ids),
        }
        rule = self._rule
        given = {name: sources[name]() for name in rule.needs()}
        byzantine = min(self._updates.algorithm.byzantine, rule.most(len(rows)))
        if isinstance(rule, HistoryRule) and "histories" in given:
            return rule.with_histories(rows, byzantine, **given)
        return rule(rows, byzantine, **given), None

    def _predicted_aggregate(
        self, exchange: Exchange, rows: Tensor, byzantine: int, ids: Indices | None
    ) -> Tensor:
        """Returns the aggregate without noise, as an attacker that knows the rule computes it.

        The rule's memory is not changed. The random numbers differ from those of the release: an
        attacker that knows a rule does not know its random numbers.
        """
        clipped = self._updates.clipped(rows, byzantine)
        return self._by_rule(clipped, exchange, ids, predicted_aggregate=True)[0]

    def _histories(self, exchange: Exchange, ids: Indices | None) -> Histories:
        """Returns the rule's memory of clients `ids` `[n]` of the cohort, before this round.

        Raises:
          ValueError: if the run stores no such memory.
          Refused: if `ids` is None: an attacker calls the rule on rows of unknown clients.
        """
        if ids is None:
            raise Refused(
                "attack.name tries the rule on rows in an unknown order of clients, but "
                "aggregation.rule has a memory of each client; use another attack or rule"
            )
        updates, cohort = self._updates, np.sort(self._updates.cohort.clients)
        if updates.world.histories is None:
            raise ValueError("the rule needs a history of each client, but world.histories is None")
        if self._gathered is None:
            unknown = torch.zeros(self._rule.keeps(exchange.layout.length))
            self._gathered, _ = updates.world.histories.gather(cohort, unknown)
        places = torch.from_numpy(np.searchsorted(cohort, ids))
        model = exchange.broadcast["params"]
        clients = self._gathered[places].to(model.device)
        return Histories(clients, updates.state.rule, model)

    def _root_update(self, exchange: Exchange) -> Tensor:
        """Returns the server's update on its root set, which is computed once per round."""
        if self._root is None:
            self._root = self._updates.world.executor.root(exchange, self._updates.cohort.round)
        return self._root

    def _generator(self, predicted_aggregate: bool) -> torch.Generator:
        streams, round = self._updates.world.streams, self._updates.cohort.round
        keys = (
            streams.at("rule/foreseen", round) if predicted_aggregate else streams.at("rule", round)
        )
        return torch.Generator().manual_seed(keys.integer())
