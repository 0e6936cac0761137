"""Samplers of cohorts. Each states the event for which it has a proof, and its adjacency relation.

The event is a Gaussian release of noise multiplier z on the sampled cohort, in the form of
`accounting.releases`; the unit of privacy is one client with all its examples.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Self

import numpy as np
from pydantic import Field

from accounting.events import ADD_REMOVE, REPLACE_ONE, ZERO_OUT
from accounting.noises import Gaussian
from accounting.over_rounds import Separated
from accounting.releases import PoissonSampled, Release, TruncatedPoisson, WithoutReplacement
from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.core.streams import Streams, bernoulli
from privfed.core.vector import Indices
from privfed.sampling.cohort import Cohort, Population, Witness

_LARGEST_DEFAULT = 150
"""Largest cohort size that is derived from data.clients."""


class SizedSampler(Part):
    """Base class of samplers: by default with a configured size and independent samples."""

    size: int = Field(0, ge=1, json_schema_extra={"default": None})
    """The cohort size, or the expected size if it is random. By default
    three tenths of data.clients, rounded down, at least 1 and at most 150."""
    remembers: ClassVar[bool] = False
    reads_sizes: ClassVar[bool] = False
    shares_places: ClassVar[bool] = False
    derives_size: ClassVar[bool] = False
    constants: ClassVar[tuple[str, ...]] = ("clients", "size")

    def of(self, clients: int) -> Self:
        if self.size:
            return self
        return self.model_copy(update={"size": min(_LARGEST_DEFAULT, max(1, 3 * clients // 10))})

    def capacity(self) -> int | None:
        return None

    def largest_staleness(self) -> int:
        return 0

    def fits(self, population: int, clients: int) -> None: ...


class Poisson(SizedSampler):
    """Includes each client independently with probability q = size / clients in each round.

    `clients` is the declared public constant; the population may be larger or smaller, and neither
    q nor the divisor (`size` = q N) changes with it. An empty cohort is possible and valid.

    *Event*: `PoissonSampled`(q, Gaussian(z)), under add/remove: adding or removing one client adds
    or removes one independent Bernoulli(q) trial. The L2 sensitivity of the sum is one clipping
    norm. Privacy is amplified by subsampling, provided the cohort is secret (Mironov, Talwar &
    Zhang 2019, section 3).
    """

    constants: ClassVar[tuple[str, ...]] = ("rate",)

    def witness(self, round: int, clients: int) -> Witness:
        rate = _rate(self.size, clients)
        return Witness("poisson", rate, ADD_REMOVE, partial(PoissonSampled, rate))

    def sample(self, round: int, clients: int, population: Population, streams: Streams) -> Cohort:
        witness = self.witness(round, clients)
        if population.sites is None:
            entered = streams.at("cohort", round).bernoulli(witness.rate, len(population))
        else:  # each site samples its own clients independently
            words = streams.at("cohort", round, population.identities).per_client(1)[:, 0]
            entered = bernoulli(words, witness.rate)
        return Cohort(round, np.flatnonzero(entered), float(self.size), witness)


class CappedPoisson(Poisson):
    """Poisson sampling truncated at `cap` clients, which are chosen uniformly from a larger sample.

    The cap bounds memory and the capacity of secure sums; data.clients must bound the population.

    *Event*: `TruncatedPoisson`(q, cap, clients, Gaussian(z)), under add/remove. Privacy is
    amplified by subsampling as for Poisson sampling. Adding a client to a full cohort displaces
    another one, so a sum changes by two clipping norms; otherwise by one. The event is a mixture of
    both cases (the proof is in `accounting.bounds.pld`).
    """

    cap: int = Field(0, ge=0)
    """Largest cohort size; 0: one and a half times the expected size, rounded up."""

    shares_places: ClassVar[bool] = True
    constants: ClassVar[tuple[str, ...]] = ("clients", "size", "cap")

    def capacity(self) -> int:
        return self.cap or -(-3 * self.size // 2)

    def witness(self, round: int, clients: int) -> Witness:
        rate, cap = _rate(self.size, clients), self.capacity()
        if cap < self.size:
            raise Refused(
                f"cohort.cap is {cap}, but cohort.size is {self.size}, so most cohorts would be "
                "truncated; expected at least cohort.size, better 1.5 times cohort.size"
            )
        sampled = partial(TruncatedPoisson, rate, cap, clients)
        return Witness("truncated_poisson", rate, ADD_REMOVE, sampled)

    def fits(self, population: int, clients: int) -> None:
        if population > clients:
            raise Refused(
                f"data.clients is {clients}, but there are more clients, and cohort.sampler = "
                '"truncated_poisson" requires an upper bound; raise data.clients'
            )

    def sample(self, round: int, clients: int, population: Population, streams: Streams) -> Cohort:
        cohort = super().sample(round, clients, population, streams)
        clients_left = _uniform_subset(cohort.clients, self.capacity(), round, streams)
        return Cohort(round, clients_left, cohort.divisor, self.witness(round, clients))


class FixedSize(SizedSampler):
    """Samples exactly `size` clients uniformly without replacement in each round.

    *Event*: `WithoutReplacement`(size, clients, Gaussian(z / 2)), under replace-one: one client's
    data are replaced by any other. The number of clients is public, and must be data.clients. Both
    neighbours have a cohort of `size`, so one client changes a sum by two clipping norms. Privacy
    is amplified by subsampling, provided the cohort is secret (Wang, Balle & Kasiviswanathan 2019,
    Theorem 27).
    """

    shares_places: ClassVar[bool] = True

    def capacity(self) -> int | None:
        return self.size

    def witness(self, round: int, clients: int) -> Witness:
        rate = _rate(self.size, clients)
        sampled = partial(WithoutReplacement, self.size, clients)
        return Witness("fixed_size", rate, REPLACE_ONE, sampled, random=False)

    def fits(self, population: int, clients: int) -> None:
        refuse_other_number(population, clients, "fixed_size")

    def sample(self, round: int, clients: int, population: Population, streams: Streams) -> Cohort:
        witness = self.witness(round, clients)
        drawn = _uniform_subset(np.arange(len(population)), self.size, round, streams)
        return Cohort(round, drawn, float(self.size), witness)


class Full(SizedSampler):
    """Includes all clients in every round; the list of clients is public.

    *Event*: Gaussian(z), under zero-out: one client's contribution is zero, and its membership is
    public. There is no amplification.
    """

    size: int = Field(0, ge=0)
    """Cohort size, which follows from data.clients."""

    derives_size: ClassVar[bool] = True
    constants: ClassVar[tuple[str, ...]] = ("clients",)

    def of(self, clients: int) -> Self:
        if self.size not in (0, clients):
            raise Refused(
                f'cohort.size is {self.size}, but cohort.sampler = "full" takes all {clients} '
                "clients; remove the key, or set it to 0"
            )
        return self.model_copy(update={"size": clients})

    def witness(self, round: int, clients: int) -> Witness:
        return Witness("full", 1.0, ZERO_OUT, _unamplified, random=False)

    def fits(self, population: int, clients: int) -> None:
        refuse_other_number(population, clients, "full")

    def sample(self, round: int, clients: int, population: Population, streams: Streams) -> Cohort:
        witness = self.witness(round, clients)
        return Cohort(round, np.arange(len(population)), float(clients), witness)


class Cyclic(SizedSampler):
    """Includes each client once in every `separation` rounds, always in the same slot.

    The slot, one of these rounds, depends only on the client's own number and a key. The key is
    drawn once and stored under private/. So a resume keeps the separation, whatever the other
    clients and their order are.

    *Event*: `Separated`(separation, Gaussian(z)), under zero-out: one client's contribution is
    zero, over a public list of exactly data.clients clients. There is no amplification, since
    participation may be known. A client takes part in at most ceil(T / separation) of T rounds, and
    is charged for that number.
    """

    remembers: ClassVar[bool] = True
    derives_size: ClassVar[bool] = True
    constants: ClassVar[tuple[str, ...]] = ("separation",)
    separation: int = Field(10, ge=1, le=1_000_000)
    """Number of consecutive rounds in which a client takes part once."""
    size: int = Field(0, ge=0)
    """Cohort size, which follows from data.clients and the separation."""

    def of(self, clients: int) -> Self:
        size = size_by_turns(self.size, clients, "separation", self.separation)
        return self.model_copy(update={"size": size})

    def witness(self, round: int, clients: int) -> Witness:
        b = self.separation
        return Witness("cyclic", 1 / b, ZERO_OUT, partial(Separated, b), separation=b, period=b)

    def fits(self, population: int, clients: int) -> None:
        refuse_other_number(population, clients, "cyclic")

    def sample(self, round: int, clients: int, population: Population, streams: Streams) -> Cohort:
        witness = self.witness(round, clients)
        words = streams.at("slots", 0, population.identities).per_client(1)[:, 0]
        present = np.flatnonzero(words % np.uint64(self.separation) == round % self.separation)
        return Cohort(round, present, clients / self.separation, witness)


class BySize(SizedSampler):
    """Includes clients with a probability proportional to their number of examples; no privacy.

    Each client is included independently with probability min(1, (size / N) n_k / mean(n)), with N
    the declared number of clients and n_k the client's number of examples. With a uniform average
    of updates, this is the alternative to uniform sampling with weights by examples (Li et al.
    2020, Algorithm 2).

    *Event*: none. A client's number of examples is private, so nothing is proved under privacy.
    """

    reads_sizes: ClassVar[bool] = True

    def witness(self, round: int, clients: int) -> Witness:
        return Witness("by_size", _rate(self.size, clients), ADD_REMOVE)

    def sample(self, round: int, clients: int, population: Population, streams: Streams) -> Cohort:
        witness = self.witness(round, clients)
        sizes = population.sizes
        mean = sizes.mean() if sizes.sum() else 1.0
        bias = np.minimum(witness.rate * sizes / mean, 1.0)
        entered = streams.at("cohort", round).bernoulli(bias, len(population))
        return Cohort(round, np.flatnonzero(entered), float(self.size), witness)


def _unamplified(noise: Gaussian) -> Release:
    """Returns the release `noise` unchanged, because all clients take part in every round."""
    return noise


def _rate(size: int, clients: int) -> float:
    """Returns `size` / `clients`. Raises `Refused` if the cohort is larger than all clients."""
    if size > clients:
        raise Refused(
            f"cohort.size is {size}, but data.clients is {clients}; expected a cohort of "
            "at most all clients: lower cohort.size or raise data.clients"
        )
    return size / clients


def _uniform_subset(clients: Indices, count: int, round: int, streams: Streams) -> Indices:
    """Returns a uniform sample of `count` of `clients`, in order; all if these are at most `count`.

    Each client draws a random word, and the smallest words are chosen. Two of n words are equal
    with a probability of about n^2 2^-65; the earlier client is then preferred.
    """
    if len(clients) <= count:
        return clients
    words = streams.at("cohort/cut", round).bits(len(clients))
    first = np.argsort(words, kind="stable")[:count]
    return np.sort(clients[first])


def size_by_turns(size: int, clients: int, key: str, rounds: int) -> int:
    """Returns the expected cohort size if each of `clients` takes part once in `rounds` rounds.

    `rounds` is the value of the key `key` of [cohort], and `size` the configured cohort size, 0 if
    none is configured.

    Raises:
      Refused: if `clients` is no multiple of `rounds`, or `size` is neither 0 nor the result.
    """
    expected, left = divmod(clients, rounds)
    if left or size not in (0, expected):
        raise Refused(
            f"cohort.size is {size}, cohort.{key} is {rounds} and data.clients is {clients}; "
            f"expected a cohort.{key} that divides the clients, and the resulting cohort size "
            "(remove cohort.size, or set it to 0)"
        )
    return expected


def refuse_other_number(population: int, clients: int, sampler: str) -> None:
    """Raises `Refused` if the number `population` of clients is not the declared `clients`."""
    if population != clients:
        raise Refused(
            f"data.clients is {clients}, but there are {population} clients; cohort.sampler = "
            f'"{sampler}" treats their number as public; set data.clients to that number'
        )
