"""The cohort of a round, the people whom it is drawn from, and the rule of the draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from accounting.noises import Gaussian
from accounting.releases import Release, TruncatedPoisson, WithoutReplacement
from privfed.core.errors import Refused
from privfed.core.parts import offered
from privfed.core.streams import Streams
from privfed.core.vector import Indices


@dataclass(frozen=True)
class Witness:
    """The rule of a draw, known before anybody is drawn: all that a mechanism's event may use.

    `rate` is the largest probability with which a client takes part in a round. `relation` is the
    neighbouring relation that a guarantee may be about. `sampled` turns a Gaussian release into the
    release on a drawn cohort: it amplifies the guarantee, or says how often a client can take part;
    it is None where nothing is proved. In `separation` rounds in a row a client takes part once at
    most, and in `period` rounds, from the first one on, everybody does once (1: nobody counts on
    that). `random` says that the cohort's size is random.

    A witness never says who was drawn or how many.
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
        """The release that the draw makes of a Gaussian one; None where nothing is proved."""
        return self.sampled(Gaussian(1.0)) if self.sampled else None

    @property
    def shares_places(self) -> bool:
        """Whether one client may take another's place, as the event says, whatever is declared."""
        return isinstance(self.release, WithoutReplacement | TruncatedPoisson)

    def refuse_population(self, population: int, clients: int) -> None:
        """Raise `Refused` where the event is not proved for a population of this size.

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
    """The `clients` `[n]` drawn for a `round` (possibly none), and the divisor of their average.

    The divisor follows from the configuration, not from who was drawn.
    """

    round: int
    clients: NDArray[np.int64]
    divisor: float
    witness: Witness


@dataclass(frozen=True)
class People:
    """The actual clients: their numbers of examples `sizes` `[n]`, and their own numbers `[n]`.

    Under privacy a sampler may use how many clients there are and their own numbers, nothing else.
    `sites` `[n]` says which site holds each of them, and draws it by its own coin; None where one
    draw is over all of them.
    """

    sizes: Indices
    identities: Indices
    sites: Indices | None = None

    def __len__(self) -> int:
        return len(self.identities)

    def with_equal_sizes(self) -> People:
        """The same people with one example each, for samplers that may not read their sizes."""
        return replace(self, sizes=np.ones_like(self.sizes))

    @classmethod
    def of(cls, sizes: Indices) -> People:
        """People who are told apart by their place alone."""
        return cls(sizes, np.arange(len(sizes)))


class Sampler(Protocol):
    """A rule that draws a cohort for every round, by declared public constants."""

    size: int
    remembers: ClassVar[bool]
    """Whether draws of different rounds depend on each other, by a key that the run keeps."""
    reads_sizes: ClassVar[bool]
    """Whether draws depend on how many examples clients have, which is private: a sampler that
    declares otherwise is shown the same number for everybody."""
    shares_places: ClassVar[bool]
    """Whether a cohort has so many places and no more, so that one client takes another's."""
    derives_size: ClassVar[bool]
    """Whether `size` follows from the declared clients, and is not configured."""
    constants: ClassVar[tuple[str, ...]]
    """What the rule of a draw follows from: "clients", "size", their quotient "rate" alone, or keys
    of the sampler itself."""

    def of(self, clients: int) -> Self:
        """The sampler with what follows from `clients` declared filled in.

        Raises `Refused` where its keys contradict their number.
        """
        ...

    def capacity(self) -> int | None:
        """The largest cohort that can be drawn; None means the whole population."""
        ...

    def witness(self, round: int, clients: int) -> Witness:
        """The rule of the draw in `round`, for `clients` declared.

        Raises `Refused` where the sampler's keys contradict their number.
        """
        ...

    def fits(self, population: int, clients: int) -> None:
        """Raise `Refused` where the proof is not for a `population` of this size."""
        ...

    def sample(self, round: int, clients: int, people: People, streams: Streams) -> Cohort:
        """The cohort of `round`, drawn of `people` by the rule for `clients` declared."""
        ...


_CLIENTS = 40
"""Declared clients of the draws that messages offer."""


def draws_of(*releases: type[Any]) -> str:
    """The built-in samplers whose draws have one of these `releases`, as a message offers them."""

    def holds(sampler: Sampler) -> bool:
        return isinstance(sampler.of(_CLIENTS).witness(1, _CLIENTS).release, releases)

    return offered("sampler", holds)


@runtime_checkable
class InGroups(Protocol):
    """A sampler that may divide clients into public groups, whose rounds take turns."""

    def possible_groups(self) -> tuple[int, ...]:
        """Into how many groups clients may be divided, the fewest first: one number if settled."""
        ...

    def in_groups(self, groups: int) -> Sampler:
        """The sampler with so many groups."""
        ...
