"""Training at a site: a client whose training fails contributes zero, and changes nothing else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from privfed.local.exchange import Chunk, Exchange
from privfed.local.executor import LocalExecutor
from privfed.sampling.cohort import Cohort
from privfed.vector import Indices

_log = logging.getLogger(__name__)
"""A site's own log, which nobody else reads."""


@dataclass(frozen=True)
class IsolatedTraining:
    """An executor's work, each failure of which is one client's (PRIVACY, section 9.1, S1).

    Clients are trained by chunks. Where one of these fails, its clients are trained each by itself,
    and of who fails then there is a row of zeros. Whether somebody did, only the site's log says.
    """

    executor: LocalExecutor

    def answering(self, cohort: Cohort) -> Cohort:
        """Those of `cohort` who are at hand."""
        return self.executor.answering(cohort)

    def root(self, exchange: Exchange, round: int) -> Tensor:
        """The server's own answer, which no site gives."""
        return self.executor.root(exchange, round)

    def chunks(self, exchange: Exchange, cohort: Cohort) -> Iterator[Chunk]:
        """The answers of `cohort`, most work first."""
        ids, size = self.executor.by_work(cohort.clients), self.executor.chunk
        for start in range(0, len(ids), size):
            yield from self._answers(exchange, cohort, ids[start : start + size])

    def _answers(self, exchange: Exchange, cohort: Cohort, ids: Indices) -> list[Chunk]:
        try:
            return list(self.executor.chunks(exchange, replace(cohort, clients=np.sort(ids))))
        except Exception:  # whatever it is: it is a matter of these clients alone
            _log.warning("training failed", exc_info=True)
        if len(ids) > 1:
            each = (self._answers(exchange, cohort, ids[k : k + 1]) for k in range(len(ids)))
            return [chunk for answers in each for chunk in answers]
        params = exchange.broadcast["params"]
        nothing = torch.zeros((1, exchange.layout.length), dtype=params.dtype, device=params.device)
        return [Chunk(ids, nothing, nothing.new_zeros(1))]
