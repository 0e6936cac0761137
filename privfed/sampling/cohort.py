"""The cohort of a round, the population from which it is sampled, and the sampling rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from accounting.noises import Gaussian, Noise, Skellam
from accounting.releases import (
    PoissonSampled,
    Release,
    Repeated,
    SeveralSites,
    TruncatedPoisson,
    Unprotected,
    WithoutReplacement,
)
from privfed.core.errors import Refused
from privfed.core.parts import built_in_names
from privfed.core.streams import Streams
from privfed.core.vector import Indices

if TYPE_CHECKING:  # lists of runs do not import accountants
    from accounting.events import Event


@dataclass(frozen=True)
class Witness:
    """The sampling rule of a round, known before sampling: the only input of a mechanism's event.

    A witness never contains the sampled clients or their number.

    Attributes:
      sampler: name of the sampler.
      rate: largest probability that a client takes part in a round.
      relation: adjacency relation of the guarantee.
      sampled: maps a Gaussian release to that release on a sampled cohort: amplified, or with a
        bound on a client's participations; None if nothing is proved for the sampler.
      separation: number of consecutive rounds in which a client takes part at most once.
      random: whether the cohort size is random.
      period: number of rounds in which every client takes part once, counted from the first round;
        1 if there is no such period.
    """

    sampler: str
    rate: float
    relation: str
    sampled: Callable[[Gaussian], Release] | None = field(default=None, compare=False)
    separation: int = 1
    random: bool = True
    period: int = 1

    @property
    def release(self) -> Release | None:
        """The release of Gaussian(1.0) on the sampled cohort; None if nothing is proved for it."""
        return self.sampled(Gaussian(1.0)) if self.sampled else None

    @property
    def shares_places(self) -> bool:
        """Whether one client may displace another from a cohort.

        This holds for cohorts of fixed or truncated size.
        """
        return isinstance(self.release, WithoutReplacement | TruncatedPoisson)

    def refuse_population(self, population: int, clients: int) -> None:
        """Raises `Refused` if the event is not proved for a `population` of this size.

        The event of a fixed cohort size requires exactly the declared number of `clients`, that of
        a truncated sample at most this number.
        """
        exactly = isinstance(self.release, WithoutReplacement)
        if (exactly and population != clients) or (self.shares_places and population > clients):
            raise Refused(
                f"data.clients is {clients}, but there are {population} clients, and the "
                f"guarantee of cohort.sampler = {self.sampler!r} holds for "
                f"{'exactly' if exactly else 'at'} "
                f"{'' if exactly else 'most '}data.clients clients; set data.clients to "
                "their number"
            )


@dataclass(frozen=True)
class Cohort:
    """The `clients` `[n]` sampled for a `round` (possibly none), and the divisor of their average.

    The divisor depends on the configuration only, not on the sampled clients. If clients train
    earlier models, `staleness` and `weights` have an entry for each client of the population `[N]`:
    the number of rounds since it received its model, and a factor in (0, 1] of its clipped row
    (None: 1). Both follow from public constants and public randomness.
    """

    round: int
    clients: NDArray[np.int64]
    divisor: float
    witness: Witness
    staleness: Indices | None = None
    weights: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Population:
    """The actual clients: their numbers of examples `sizes` `[n]`, and their `identities` `[n]`.

    Under privacy a sampler may use only the number of clients and their identities. If sites sample
    their clients independently, `sites` `[n]` is the site of each client; it is None if one sampler
    covers all clients.
    """

    sizes: Indices
    identities: Indices
    sites: Indices | None = None

    def __len__(self) -> int:
        return len(self.identities)

    def with_equal_sizes(self) -> Population:
        """Returns the population with all sizes 1, for samplers that may not read the sizes."""
        return replace(self, sizes=np.ones_like(self.sizes))

    @classmethod
    def of(cls, sizes: Indices) -> Population:
        """Returns a population of clients with these `sizes`, identified by their index."""
        return cls(sizes, np.arange(len(sizes)))


class Sampler(Protocol):
    """A rule that samples a cohort for every round, from declared public constants."""

    size: int
    remembers: ClassVar[bool]
    """Whether samples of different rounds depend on each other, by a key that the run stores."""
    reads_sizes: ClassVar[bool]
    """Whether sampling depends on clients' numbers of examples, which are private: if not, the
    sampler receives the same number for every client."""
    shares_places: ClassVar[bool]
    """Whether the cohort size is capped, so that adding one client can displace another."""
    derives_size: ClassVar[bool]
    """Whether `size` follows from the declared clients, and is not configured."""
    constants: ClassVar[tuple[str, ...]]
    """Constants that determine the sampling rule: "clients", "size", only their quotient "rate", or
    keys of the sampler itself."""

    def of(self, clients: int) -> Self:
        """Returns the sampler with the values that follow from the declared `clients`.

        Raises `Refused` if the sampler's keys contradict this number.
        """

    def capacity(self) -> int | None:
        """Returns the largest possible cohort size; None if it may be the complete population."""

    def largest_staleness(self) -> int:
        """Returns the largest number of rounds since a client of a cohort received its model.

        The server stores that many earlier models; 0 if all clients train the current one.
        """

    def witness(self, round: int, clients: int) -> Witness:
        """Returns the sampling rule of `round`, for the declared number of `clients`.

        Raises `Refused` if the sampler's keys contradict that number.
        """

    def fits(self, population: int, clients: int) -> None:
        """Raises `Refused` if the sampler's proof does not cover a `population` of this size.

        `clients` is the declared number.
        """

    def sample(self, round: int, clients: int, population: Population, streams: Streams) -> Cohort:
        """Returns the cohort of `round`.

        Args:
          round: number of the round, from 1.
          clients: declared number of clients.
          population: the population to sample from.
          streams: sources of randomness.
        """


_CLIENTS = 40
"""Declared number of clients for the samplers that messages name."""


def draws_of(*releases: type[Any]) -> str:
    """Returns the names of the built-in samplers whose release has one of the types `releases`.

    The result is a text for error messages.
    """

    def holds(sampler: Sampler) -> bool:
        return isinstance(sampler.of(_CLIENTS).witness(1, _CLIENTS).release, releases)

    return built_in_names("sampler", holds)


@runtime_checkable
class InGroups(Protocol):
    """A sampler that may divide clients into public groups, which take turns by round."""

    def possible_groups(self) -> tuple[int, ...]:
        """Returns the possible numbers of groups, ascending; a single one if it is configured."""

    def in_groups(self, groups: int) -> Sampler:
        """Returns the sampler with this number of groups."""


def over_larger_population(witness: Witness, more: int) -> Witness:
    """Returns the sampling rule if the population has `more` clients (canaries) than declared.

    Rate and divisor remain those of the declared clients, because a client's own Bernoulli draw or
    slot does not depend on other clients. With a fixed cohort size, a larger population has a
    smaller sampling rate, whose event is bounded by that of the declared rate
    (`privfed.auditing.canaries.inclusion`). The proof of a truncated sample needs an upper bound on
    the population, to which the canaries are added.
    """
    drawn = witness.release
    if not more or not isinstance(drawn, TruncatedPoisson):
        return witness
    clients = drawn.clients + more
    sampled: partial[TruncatedPoisson] = partial(TruncatedPoisson, drawn.rate, drawn.cap, clients)
    return replace(witness, sampled=sampled)


def over_several_sites(witness: Witness, sites: int) -> Witness:
    """Returns the sampling rule if each of at most `sites` sites samples a client independently.

    Each site has one row of the client, clipped to a `sites`-th of the clipping norm. The noise
    multiplier of a Gaussian is then relative to that norm (rules of proof, section 9.4).

    Raises:
      Refused: if there are several sites and clients are not sampled by Poisson sampling.
    """
    if sites == 1:
        return witness
    if not isinstance(witness.release, PoissonSampled):
        raise Refused(
            f"data.sites_per_client is {sites}, but cohort.sampler = {witness.sampler!r} has "
            f"no proof for clients with rows at several sites; use {draws_of(PoissonSampled)}"
        )
    return replace(witness, sampled=partial(SeveralSites, witness.rate, sites))


def sampled_at_sites(
    witness: Witness, noised: Noise | Unprotected, slack: float = 0.0, alone: bool = False
) -> Event:
    """Returns the event of a sum with the noise of sites, which sample their clients in secret.

    For a client at s sites, a sum with Skellam noise of variance mu is post-processing of s sums of
    variance mu / s, one for each site. These are s events with independent samples. Gaussian noise
    has a separate event for such clients (`SeveralSites`). If each site adds complete noise to its
    own sum (`alone`), s sites are s events.

    Args:
      witness: the sampling rule of each site.
      noised: the release of the sum with all sites' noise; of one site's sum if `alone`.
      slack: bound on the total variation distance to the sum as executed, charged to delta.
      alone: whether the noise of each site covers its own sum.

    Raises:
      Refused: if there is no proof for the sampler.
    """
    from accounting.bounds.several_sites import at_several_sites
    from accounting.events import Event

    drawn = witness.release
    event = Event(noised, witness.sampler, witness.relation, slack=slack)
    match drawn, noised:
        case (PoissonSampled() | SeveralSites() | Gaussian(), Unprotected()) | (Gaussian(), _):
            return event
        case PoissonSampled(rate=rate), Gaussian() | Skellam():
            return replace(event, release=PoissonSampled(rate, noised))
        case SeveralSites(rate=rate, sites=sites), Gaussian() if alone:
            return replace(event, release=Repeated(sites, PoissonSampled(rate, noised)))
        case SeveralSites(rate=rate, sites=sites), Gaussian() | Skellam():
            return replace(event, release=at_several_sites(rate, sites, noised))
    raise Refused(
        f"cohort.sampler is {witness.sampler!r}, but has no proof if sites sample their own "
        f"clients; use {draws_of(PoissonSampled, Gaussian)}"
    )
