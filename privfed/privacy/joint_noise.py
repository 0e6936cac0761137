"""Noise that hangs together over the clients of a round, each of whom sends a row of its own."""

from __future__ import annotations

from typing import Protocol, TypeGuard

from privfed.privacy.mechanism import Mechanism
from privfed.privacy.noise.pairwise import PairwiseNoise


class JointNoise(Mechanism, Protocol):
    """A mechanism whose clients share noise, of which the server knows what colluders know."""

    pair_noise: float
    """The standard deviation that each pair of clients shares, over a client's own."""
    colluders: int
    """How many clients may work with the server, beside those who may be hostile."""

    @property
    def honest(self) -> int:
        """How many clients are counted on."""
        ...

    @property
    def alone(self) -> float:
        """The noise multiplier against all others together: that of a client's own noise."""
        ...

    def noise(self) -> PairwiseNoise:
        """What clients add. Raises `ValueError` before planning."""
        ...

    def among_honest(self) -> JointNoise:
        """The same noise among honest clients alone: what colluders are left to see."""
        ...


def noised_jointly(mechanism: Mechanism) -> TypeGuard[JointNoise]:
    """Whether clients share noise, so that the rows of a cohort are noised at once."""
    return mechanism.joint
