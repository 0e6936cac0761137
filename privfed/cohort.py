"""Who takes part in a round, and the rule by which they were drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from accounting.events import ADD_REMOVE
from privfed.errors import Refused
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
    """Draws cohorts from `population` actual clients by declared public constants."""

    size: int

    def capacity(self) -> int | None:
        """The largest cohort that can be drawn; None means the whole population."""
        ...

    def witness(self, round: int, clients: int) -> Witness: ...

    def sample(self, round: int, clients: int, population: int, streams: Streams) -> Cohort: ...


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

    def sample(self, round: int, clients: int, population: int, streams: Streams) -> Cohort:
        witness = self.witness(round, clients)
        coins = streams.at("cohort", round).bernoulli(witness.rate, population)
        return Cohort(round, np.flatnonzero(coins), float(self.size), witness)
