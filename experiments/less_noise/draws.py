"""The event of a round for each sampler in the tables, at any noise multiplier."""

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
    """Returns an event with participation once in any `apart` rounds, at public times."""
    return lambda z: Event(Separated(apart, Gaussian(z)), "cyclic", ZERO_OUT)


def buffered(apart: int, buffers: Buffers) -> Draw:
    """Returns the same event with noise correlated over all rounds by `buffers`."""

    def event(z: float) -> Event:
        release = BufferedToeplitz(buffers.decays, buffers.outputs, apart, Gaussian(z))
        return Event(release, "cyclic", ZERO_OUT)

    return event


def allocated(apart: int, groups: int = 1) -> Draw:
    """Returns an event with a secret, resampled slot in every `apart` rounds, within a group."""
    relation = ADD_REMOVE if groups == 1 else ZERO_OUT
    return lambda z: Event(RandomAllocation(apart, groups, Gaussian(z)), "allocation", relation)


def poisson(apart: int) -> Draw:
    """Returns an event with independent participation, once in `apart` rounds on average."""
    return lambda z: Event(PoissonSampled(1 / apart, Gaussian(z)), "poisson", ADD_REMOVE)
