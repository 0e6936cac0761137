"""Noise that clients make up together: what its mechanisms have beside what all have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeGuard

from accounting.events import Event
from privfed.privacy.mechanism import Mechanism
from privfed.privacy.noise.pairwise import PairwiseNoise
from privfed.sampling.cohort import Witness


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


@dataclass(frozen=True)
class IntegerGrid:
    """How rows become whole numbers: a `step`, and what follows from it, in steps.

    `share` is the deviation of one client's noise, `l2` and `l1` bound an encoded row (PRIVACY,
    section 3: never the clip), `wraps` is the probability that a coordinate of the sum wraps.
    """

    step: float
    share: float
    l2: float
    l1: float
    length: int
    wraps: float
    rotated: bool = True
    """Whether rows are rotated first, so that numbers of their sum are of one size."""


OTHER_PARTY = {
    "server": "readers",
    "readers": "server",
    "sites": "others",
    "others": "sites",
}
"""The party that distributed noise protects against, beside the one that the budget gates: "sites"
are the server with colluding sites, and "others" all but a client's own site."""

PARTY_WORDS = {
    "server": "the server",
    "readers": "readers of what is released",
    "sites": "the server, readers and colluding sites",
    "others": "all but a client's own site",
    "clients": "the server and colluding clients",
}
"""The parties that an epsilon of noise that is shared may be against, in words."""


class SharedNoise(Mechanism, Protocol):
    """A mechanism whose noise arises on clients, as shares of it that a secure sum adds up."""

    tolerance: float
    """The part of an expected cohort that may be missing from a sum."""

    @property
    def against(self) -> str:
        """The party whose guarantee the budget gates: the "server", "readers", or "sites"."""
        ...

    @property
    def honest(self) -> float:
        """A lower bound on the part of the noise added by clients who keep it to themselves."""
        ...

    def grid(self) -> IntegerGrid:
        """How rows become whole numbers. Raises `Refused` where the bits are too few."""
        ...

    def events(self, witness: Witness, exchanges: int) -> dict[str, Event]:
        """The round's event by whom it protects against."""
        ...


def shares_noise(mechanism: Mechanism) -> TypeGuard[SharedNoise]:
    """Whether clients make up the noise together, in a secure sum."""
    return mechanism.trust == "sum"
