"""Who takes part in a round, and the rule by which they were drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from accounting.events import ADD_REMOVE
from privfed.errors import Refused
from privfed.federation import Indices
from privfed.parts import Part
from privfed.streams import Streams


@dataclass(frozen=True)
class Witness:
    """The rule of a draw, known before anybody is drawn: all that a mechanism's event may use.

    It decides the neighbouring relation and whether the draw amplifies. It never says who was drawn
    or how many.
    """

    sampler: str
    rate: float
    relation: str


@dataclass(frozen=True)
class Cohort:
    """`clients` `[n]` (possibly none), and the divisor that the configuration fixed."""

    round: int
    clients: NDArray[np.int64]
    divisor: float
    witness: Witness


class Sampler(Protocol):
    """Draws cohorts by declared public constants.

    `sizes` `[population]` are the examples of each actual client. Under privacy a sampler may use
    how many clients there are, and nothing else of it.
    """

    size: int

    def capacity(self) -> int | None:
        """The largest cohort that can be drawn; None means the whole population."""
        ...

    def witness(self, round: int, clients: int) -> Witness: ...

    def sample(self, round: int, clients: int, sizes: Indices, streams: Streams) -> Cohort: ...


class Poisson(Part):
    """Each client enters by its own coin of bias q = size / clients, independently each round.

    `clients` is the declared public constant; the population may hold more or fewer, and neither q
    nor the divisor (`size` = q N) changes with it. An empty cohort is an ordinary outcome.
    """

    size: int = Field(150, ge=1)

    def capacity(self) -> int | None:
        return None

    def witness(self, round: int, clients: int) -> Witness:
        if self.size > clients:
            raise Refused(
                f"cohort.size is {self.size}, but data.clients is {clients}; expected a cohort of "
                "at most all clients: lower cohort.size or raise data.clients"
            )
        return Witness("poisson", self.size / clients, ADD_REMOVE)

    def sample(self, round: int, clients: int, sizes: Indices, streams: Streams) -> Cohort:
        witness = self.witness(round, clients)
        coins = streams.at("cohort", round).bernoulli(witness.rate, len(sizes))
        return Cohort(round, np.flatnonzero(coins), float(self.size), witness)


class BySize(Part):
    """Clients enter with a probability that goes with their number of examples; no privacy.

    Each by its own coin of bias min(1, size n_k / mean n / N): with a uniform average of updates,
    the alternative to sampling uniformly and weighing by examples (Li et al. 2020, Algorithm 2).
    How many examples somebody has is private, so this has no event under privacy.
    """

    size: int = Field(150, ge=1)

    def capacity(self) -> int | None:
        return None

    def witness(self, round: int, clients: int) -> Witness:
        rate = Poisson(size=self.size).witness(round, clients).rate
        return Witness("by_size", rate, ADD_REMOVE)

    def sample(self, round: int, clients: int, sizes: Indices, streams: Streams) -> Cohort:
        witness = self.witness(round, clients)
        mean = sizes.mean() if sizes.sum() else 1.0
        bias = np.minimum(witness.rate * sizes / mean, 1.0)
        words = streams.at("cohort", round).bits(len(sizes)) >> np.uint64(11)
        coins = words < (bias * 2.0**53).astype(np.uint64)
        return Cohort(round, np.flatnonzero(coins), float(self.size), witness)
