"""A round of each draw that the tables compare, at any noise multiplier."""

from __future__ import annotations

from collections.abc import Callable

from accounting.events import ADD_REMOVE, ZERO_OUT, Event
from accounting.noises import Gaussian
from accounting.over_rounds import BufferedToeplitz, RandomAllocation, Separated
from accounting.releases import PoissonSampled
from privfed.privacy.noise.factorization import Buffers

Draw = Callable[[float], Event]
"""The event of a round as a function of its noise multiplier."""


def cyclic(apart: int) -> Draw:
    """A client takes part once in any `apart` rounds, and when is no secret."""
    return lambda z: Event(Separated(apart, Gaussian(z)), "cyclic", ZERO_OUT)


def buffered(apart: int, buffers: Buffers) -> Draw:
    """The same with noise that is correlated over all rounds by `buffers`."""

    def event(z: float) -> Event:
        release = BufferedToeplitz(buffers.decays, buffers.outputs, apart, Gaussian(z))
        return Event(release, "cyclic", ZERO_OUT)

    return event


def allocated(apart: int, groups: int = 1) -> Draw:
    """A client takes part in a secret, fresh slot of every `apart` rounds, among its group's."""
    relation = ADD_REMOVE if groups == 1 else ZERO_OUT
    return lambda z: Event(RandomAllocation(apart, groups, Gaussian(z)), "allocation", relation)


def poisson(apart: int) -> Draw:
    """A client takes part in each round by a secret coin, once in `apart` rounds on average."""
    return lambda z: Event(PoissonSampled(1 / apart, Gaussian(z)), "poisson", ADD_REMOVE)
