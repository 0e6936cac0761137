"""Buffered asynchronous rounds: public ticks of a fixed length, which wait for no client."""

from __future__ import annotations

from functools import partial
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field

from accounting.events import ZERO_OUT
from accounting.over_rounds import Separated
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.core.vector import Indices
from privfed.sampling.cohort import Cohort, Population, Witness
from privfed.sampling.samplers import SizedSampler, refuse_other_number

Delay = Annotated[int, Field(ge=0, le=1000)]


class Asynchronous(SizedSampler):
    """Closes rounds at fixed public ticks; the update of a slow client enters a later tick.

    A client of delay s receives the model at the start of a tick, and delivers its update s ticks
    later, relative to the model that it received: its staleness is s. It receives the next model
    max(separation, s + 1) ticks after the previous one. Each client has one of the `delays`,
    uniformly at random. Its delay and the ticks of its arrivals depend only on its own number and a
    key, which is drawn once and stored under private/. So a resume keeps the separation, whatever
    the other clients and their order are. A tick lasts as long as a client of delay 0 needs for one
    update. Updates that arrive in the first s ticks are of the initial model, which clients have
    before tick 1.

    A clipped row of staleness s has weight (1 + s)^-damping. The divisor is the expected number of
    arrivals per tick: a constant of the configuration, rounded.

    *Event*: `Separated`(separation, Gaussian(z)), under zero-out: one client's contribution is
    zero, over a public list of exactly data.clients clients. A sum of a tick changes by at most one
    clipping norm, because a client has one row in it, clipped and then multiplied by a weight of at
    most 1, whatever its staleness: an earlier model is a function of earlier releases. A client is
    in at most ceil(T / separation) of T ticks. Given the earlier releases, both neighbours' sums
    are equal in all others, so the T ticks are that many adaptive Gaussian releases. The proof
    needs only the separation: it holds for every pattern of arrivals that keeps it, also one chosen
    by an adversary that reads all releases. There is no amplification, and the time of an arrival
    is not protected.

    Source: Nguyen et al. 2022, "Federated learning with buffered asynchronous aggregation"
    (FedBuff; its weights: damping 0.5); Huba et al. 2022, "PAPAYA". There a buffer closes after a
    number of arrivals; here it closes at a fixed time, so its divisor does not depend on arrivals.
    """

    remembers: ClassVar[bool] = True
    derives_size: ClassVar[bool] = True
    constants: ClassVar[tuple[str, ...]] = ("separation",)
    separation: int = Field(10, ge=1, le=1_000_000)
    """Number of consecutive ticks in which a client takes part at most once."""
    delays: tuple[Delay, ...] = Field((0, 0, 0, 0, 9), min_length=1, max_length=1000, strict=False)
    """The delay of each tier of clients: ticks from receiving a model to delivering the update."""
    damping: float = Field(0.0, ge=0, le=100)
    """Exponent of the weight (1 + staleness)^-damping of a row; 0: all rows have weight 1. Under
    privacy a smaller weight reduces the signal, but not the noise."""
    size: int = Field(0, ge=0)
    """Expected arrivals per tick, which follow from data.clients, the separation and the delays."""

    def of(self, clients: int) -> Self:
        expected = max(1, round(clients * float(np.mean(1 / self._periods(np.array(self.delays))))))
        if min(self.delays) >= self.separation:
            raise Refused(
                f"cohort.separation is {self.separation}, but the smallest of cohort.delays is "
                f"{min(self.delays)}, so every client takes part less often than is charged; set "
                f"cohort.separation to {min(self.delays) + 1} or more, or lower cohort.delays"
            )
        if self.size not in (0, expected):
            raise Refused(
                f"cohort.size is {self.size}, but {expected} arrivals per tick are expected of "
                f"{clients} clients; remove cohort.size, or set it to 0"
            )
        return self.model_copy(update={"size": expected})

    def largest_staleness(self) -> int:
        return max(self.delays)

    def witness(self, round: int, clients: int) -> Witness:
        b = self.separation
        return Witness("asynchronous", 1 / b, ZERO_OUT, partial(Separated, b), separation=b)

    def fits(self, population: int, clients: int) -> None:
        refuse_other_number(population, clients, "asynchronous")

    def sample(self, round: int, clients: int, population: Population, streams: Streams) -> Cohort:
        words = streams.at("slots", 0, population.identities).per_client(2)
        delay = np.array(self.delays)[words[:, 1] % np.uint64(len(self.delays))]
        period = self._periods(delay)
        first = (words[:, 0] % period.astype(np.uint64)).astype(np.int64)
        arrives = (round - first) % period == 0
        return Cohort(
            round,
            np.flatnonzero(arrives),
            float(self.of(clients).size),
            self.witness(round, clients),
            staleness=delay,
            weights=(1.0 + delay) ** -self.damping if self.damping else None,
        )

    def _periods(self, delays: Indices) -> Indices:
        """Returns the number of ticks between two arrivals of clients with `delays` `[n]`."""
        return np.maximum(self.separation, delays + 1)
