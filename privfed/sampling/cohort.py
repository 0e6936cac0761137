"""Who takes part in a round, and the rule by which they were drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from accounting.releases import Gaussian, Release, TruncatedPoisson, WithoutReplacement
from privfed.errors import Refused
from privfed.streams import Streams
from privfed.vector import Indices


@dataclass(frozen=True)
class Witness:
    """The rule of a draw, known before anybody is drawn: all that a mechanism's event may use.

    `rate` is the largest probability with which a client takes part in a round. `relation` is what
    its guarantee may be about, and `sampled` how the draw changes a Gaussian release: it amplifies
    it, or says how often a client can take part; None where nothing is proved. `separation` is how
    many rounds in a row see a client once at most. `random` tells that the cohort's size is.

    It never says who was drawn or how many.
    """

    sampler: str
    rate: float
    relation: str
    sampled: Callable[[Gaussian], Release] | None = field(default=None, compare=False)
    separation: int = 1
    random: bool = True

    @property
    def release(self) -> Release | None:
        """What the draw makes of a Gaussian release; None where nothing is proved."""
        return self.sampled(Gaussian(1.0)) if self.sampled else None

    @property
    def shares_places(self) -> bool:
        """Whether a client takes another's place, as its event says, whatever is declared."""
        return isinstance(self.release, WithoutReplacement | TruncatedPoisson)

    def refuse_population(self, population: int, clients: int) -> None:
        """Raises `Refused` where the event is proved for another number of clients than there is.

        That of a fixed size is about exactly `clients` declared, that of a cut draw about no more.
        """
        exactly = isinstance(self.release, WithoutReplacement)
        if (exactly and population != clients) or (self.shares_places and population > clients):
            raise Refused(
                f"data.clients is {clients}, but there are {population} clients; the rule of "
                f"cohort.sampler, {self.sampler!r}, is proved for {'exactly' if exactly else 'at'} "
                f"{'' if exactly else 'most '}so many: set data.clients to their number"
            )


@dataclass(frozen=True)
class Cohort:
    """`clients` `[n]` (possibly none), and the divisor that the configuration fixed."""

    round: int
    clients: NDArray[np.int64]
    divisor: float
    witness: Witness


@dataclass(frozen=True)
class People:
    """The actual clients: their numbers of examples `[n]`, and their own numbers `[n]`.

    Under privacy a sampler may use how many there are and who, and nothing else.
    """

    sizes: Indices
    identities: Indices

    def __len__(self) -> int:
        return len(self.identities)

    def alike(self) -> People:
        """The same people, each with one example: for who may not read how many there are."""
        return People(np.ones_like(self.sizes), self.identities)

    @classmethod
    def of(cls, sizes: Indices) -> People:
        """People who are told apart by their place alone."""
        return cls(sizes, np.arange(len(sizes)))


class Sampler(Protocol):
    """Draws cohorts by declared public constants."""

    size: int
    remembers: ClassVar[bool]
    """Whether draws of different rounds depend on each other, by the run's own kept key."""
    reads_sizes: ClassVar[bool]
    """Whether draws depend on how many examples clients have, which is private: a sampler that
    declares otherwise is shown the same number for everybody."""
    shares_places: ClassVar[bool]
    """Whether a cohort has so many places and no more, so that one client takes another's."""
    derives_size: ClassVar[bool]
    """Whether `size` follows from the declared clients, and is not configured."""
    constants: ClassVar[tuple[str, ...]]
    """What the rule of a draw follows from: "clients", "size", their quotient "rate" alone, or keys
    of the sampler's own."""

    def of(self, clients: int) -> Self:
        """With what follows from `clients` declared filled in. Raises `Refused`."""
        ...

    def capacity(self) -> int | None:
        """The largest cohort that can be drawn; None means the whole population."""
        ...

    def witness(self, round: int, clients: int) -> Witness:
        """The rule, for `clients` declared. Raises `Refused` where they do not go together."""
        ...

    def fits(self, population: int, clients: int) -> None:
        """Raises `Refused` where the proof needs another number of actual clients than found."""
        ...

    def sample(self, round: int, clients: int, people: People, streams: Streams) -> Cohort: ...
