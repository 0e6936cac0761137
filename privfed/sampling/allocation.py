"""Random allocation: each client takes part in one secret, fresh slot of every epoch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Self

import numpy as np
from pydantic import Field

from accounting.events import ADD_REMOVE, ZERO_OUT
from accounting.noises import Gaussian
from accounting.over_rounds import RandomAllocation
from privfed.core.errors import Refused
from privfed.core.streams import Streams, Words
from privfed.core.vector import Indices
from privfed.sampling.cohort import Cohort, Population, Witness
from privfed.sampling.samplers import SizedSampler, refuse_other_number, size_by_turns

_WORDS = 4
"""Number of random words per client for a slot; the probability that all are rejected is below
2^-176, negligible for any delta in double precision."""


class Allocation(SizedSampler):
    """Each client takes part once in every epoch of `slots` rounds, in a secret slot.

    A slot is a round of the epoch. The client's slot is uniform, computed by AES-256 of its own
    number under a key of the epoch, which is derived from the run's key under private/. The slot is
    independent of other clients and of earlier epochs, and the same after a resume. An aborted
    round consumes its slot.

    With `groups`, clients are assigned permanently to that many groups by a public hash of their
    number. The groups take turns from round to round, so a client's possible rounds are `groups`
    apart, and its slot is one of slots / groups.

    *Event*: `RandomAllocation`(slots, groups, Gaussian(z)). With one group, under add/remove:
    adding or removing a client adds or removes its slots and changes no other client's slots. The
    population may be larger or smaller than the declared `data.clients`, which alone determines the
    divisor. With several groups, under zero-out, over a public list of exactly `data.clients`
    clients: groups are public, and so is each client's membership. Privacy is amplified by the
    secret slots (`accounting.bounds.random_allocation`) against readers of the releases, but not
    against a server that knows the cohorts. Cohort sizes must remain secret, too.
    """

    remembers: ClassVar[bool] = True
    derives_size: ClassVar[bool] = True
    constants: ClassVar[tuple[str, ...]] = ("slots", "groups")
    size: int = Field(0, ge=0)
    """Cohort size, which follows from data.clients and the slots."""
    slots: int = Field(10, ge=1, le=1_000_000)
    """Number of rounds of an epoch, in one of which a client takes part."""
    groups: int = Field(0, ge=0, le=1_000_000)
    """Number of public groups of clients: correlated noise may have as many bands. 0: as many
    groups as the mechanism has bands."""

    def of(self, clients: int) -> Self:
        size = size_by_turns(self.size, clients, "slots", self.slots)
        if self.groups and self.slots % self.groups:
            raise Refused(
                f"cohort.groups is {self.groups}, but must divide cohort.slots = {self.slots}; use "
                f"one of {', '.join(map(str, _divisors(self.slots)))}"
            )
        return self.model_copy(update={"size": size})

    def possible_groups(self) -> tuple[int, ...]:
        """Returns the possible numbers of groups: `groups` if set, else all divisors of `slots`."""
        if self.groups:
            return (self.groups,)
        return _divisors(self.slots)

    def in_groups(self, groups: int) -> Self:
        """Returns the sampler with this number of groups."""
        return self.model_copy(update={"groups": groups})

    def witness(self, round: int, clients: int) -> Witness:
        groups = self.groups or 1
        relation = ADD_REMOVE if groups == 1 else ZERO_OUT
        sampled: Callable[[Gaussian], RandomAllocation] = partial(
            RandomAllocation, self.slots, groups
        )
        return Witness(
            "allocation", 1 / self.slots, relation, sampled, separation=groups, period=self.slots
        )

    def fits(self, population: int, clients: int) -> None:
        if self.groups > 1:
            refuse_other_number(population, clients, "allocation")

    def sample(self, round: int, clients: int, population: Population, streams: Streams) -> Cohort:
        epoch, place = divmod(round - 1, self.slots)
        groups = self.groups or 1
        group = streams.at("slots/group", 0, population.identities).per_client(1)[:, 0]
        fresh = streams.at("slots/epoch", epoch, population.identities).keyed_words(_WORDS)
        turn = uniform_below(self.slots // groups, fresh)
        slot = (group % np.uint64(groups)).astype(np.int64) + groups * turn
        present = np.flatnonzero(slot == place)
        return Cohort(round, present, clients / self.slots, self.witness(round, clients))


def _divisors(slots: int) -> tuple[int, ...]:
    return tuple(groups for groups in range(1, slots + 1) if slots % groups == 0)


def uniform_below(bound: int, words: Words) -> Indices:
    """Returns uniform integers `[n]` from 0 to `bound` - 1, one for each row of `words` `[n, k]`.

    Words have 64 bits. In each row the first one below the largest multiple of `bound` up to 2^64
    is taken, modulo `bound`, so the integer is unbiased. If a row has no such word, its first word
    is taken.
    """
    largest = np.uint64((1 << 64) // bound * bound - 1)
    chosen = words[:, 0].copy()
    rejected = np.flatnonzero(chosen > largest)
    first = np.argmax(words[rejected] <= largest, axis=1)
    chosen[rejected] = words[rejected, first]
    return np.asarray(chosen % np.uint64(bound), dtype=np.int64)
