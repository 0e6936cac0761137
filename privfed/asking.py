"""A round's cohort and its answers: trained once, corrupted by attackers, kept for passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from attacks.types import State
from privfed.attackers import Mask
from privfed.cohort import Cohort
from privfed.federation import Indices
from privfed.local.objective import Exchange

if TYPE_CHECKING:
    from privfed.round import Chunk, World


@dataclass
class Asking:
    """Asks the cohort of one round, chunk by chunk.

    `plotted` is what attackers remember. `aggregate` is the run's aggregation of rows `[n, m]`
    about a center, which an attacker may know.
    """

    world: World
    round: int
    passes: int
    plotted: State
    aggregate: Callable[[Tensor, Exchange], Tensor]
    held: list[Chunk] = field(default_factory=list)

    def chunks(self, exchange: Exchange, here: Cohort) -> Iterator[Chunk]:
        """The answers of those who are `here`; of later passes, the same rows as before."""
        if exchange.task == "terms":
            yield from self.held
            return
        for chunk in self._corrupted(exchange, here):
            if exchange.task == "train" and self.passes > 1:
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
        rows, self.plotted = attackers.corrupt(
            self.round,
            self.hostile(ids),
            rows,
            self.plotted,
            lambda every: self.aggregate(every, exchange),
        )
        return rows

    def _show(self, exchange: Exchange, ids: Indices, rows: Tensor) -> None:
        if self.world.watch and exchange.task == "train":
            self.world.watch.rows(self.round, ids, rows, self.hostile(ids))
