"""Canaries that train: made-up clients with examples of their own, in the run's own population.

Each of K canaries is one of two neighbours by a fair coin of its own, and follows the run's
sampler, availability, local training, clip, sum and draw, as any client does. With heads it is in
the population and holds its examples. With tails it is not in it, where the claim is about
add/remove; else it holds none, and adds nothing to the sum: under zero-out that is the neighbour,
and under replace-one it is one of those that the claim is about. The proof, for canaries and for
real clients, is in `privfed.auditing.canaries.coins`. Examples follow from the key under private/,
from the public start and from public examples: from nobody's data.

The adversary sees the final model only, as people who publish models fear. Crafted canaries in that
threat model: Annamalai & De Cristofaro 2024, "Nearly tight black-box auditing of differentially
private machine learning"; Cebere, Bellet & Papernot 2024, "Tighter privacy auditing of DP-SGD in
the hidden state threat model".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfed.auditing.canaries.identities import canary_identities
from privfed.local.exchange import Chunk, Exchange, Executor
from privfed.sampling.cohort import Cohort, People
from privfed.vector import Indices


@dataclass(frozen=True)
class WithTraining:
    """An executor in whose cohorts canaries answer, too, as `training` has them.

    The real clients have the numbers below `clients`; a canary's number is its place behind them.
    Those that are `silent` `[canaries]` send rows of the number `nothing`, which add zero.
    """

    inner: Executor
    training: Executor
    clients: int
    silent: NDArray[np.bool_]
    nothing: float = 0.0

    def answering(self, cohort: Cohort) -> Cohort:
        real, made_up = self._parted(cohort)
        there = (
            self.inner.answering(replace(cohort, clients=real)).clients,
            self.training.answering(replace(cohort, clients=made_up)).clients + self.clients,
        )
        return replace(cohort, clients=np.concatenate(there))

    def chunks(self, exchange: Exchange, cohort: Cohort) -> Iterator[Chunk]:
        real, made_up = self._parted(cohort)
        yield from self.inner.chunks(exchange, replace(cohort, clients=real))
        for chunk in self.training.chunks(exchange, replace(cohort, clients=made_up)):
            silent = torch.from_numpy(self.silent[chunk.ids]).to(chunk.rows.device)
            rows = chunk.rows.masked_fill(silent[:, None], self.nothing)
            yield replace(chunk, ids=chunk.ids + self.clients, rows=rows)

    def root(self, exchange: Exchange, round: int) -> Tensor:
        return self.inner.root(exchange, round)

    def _parted(self, cohort: Cohort) -> tuple[Indices, Indices]:
        """The real clients of a cohort, and its canaries by their places among canaries."""
        ids = cohort.clients
        return ids[ids < self.clients], ids[ids >= self.clients] - self.clients


def with_trainees(people: People, there: Indices, sites: int) -> People:
    """The population with the canaries `there` `[c]` behind the real clients, at sites in turn."""
    sizes = np.concatenate([people.sizes, np.zeros(len(there), dtype=np.int64)])
    identities = np.concatenate([people.identities, canary_identities(there)])
    if people.sites is None:
        return People(sizes, identities)
    return People(sizes, identities, np.concatenate([people.sites, there % sites]))
