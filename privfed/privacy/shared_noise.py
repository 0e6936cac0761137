"""Interfaces of mechanisms whose noise several clients add together, or share in pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeGuard

from accounting.events import Event
from privfed.privacy.mechanism import Mechanism
from privfed.privacy.noise.pairwise import PairwiseNoise
from privfed.sampling.cohort import Witness


class JointNoise(Protocol):
    """A mechanism in which pairs of clients share noise; colluders reveal what they share."""

    pair_noise: float
    """Standard deviation of the noise of a pair of clients, relative to a client's own noise."""
    colluders: int
    """Number of clients that may collude with the server, in addition to Byzantine clients."""

    @property
    def honest(self) -> int:
        """Number of clients assumed to be honest."""

    @property
    def alone(self) -> float:
        """Noise multiplier against all other clients together: only a client's own noise counts."""

    def noise(self) -> PairwiseNoise:
        """Returns the noise that clients add. Raises `ValueError` before the run is planned."""

    def among_honest(self) -> JointNoise:
        """Returns the mechanism of honest clients only, whose noise colluders cannot subtract."""


def noised_jointly(mechanism: Mechanism) -> TypeGuard[JointNoise]:
    """Whether pairs of clients share noise; then all rows of a cohort are noised at once."""
    return mechanism.joint


@dataclass(frozen=True)
class IntegerGrid:
    """The integer encoding of rows: a `step`, and the values that follow from it, in steps.

    `share` is the standard deviation of the noise of one client (or site), `l2` and `l1` bound an
    encoded row (rules of proof, section 3: never the clip), and `wraps` is the probability that a
    coordinate of the sum wraps.
    """

    step: float
    share: float
    l2: float
    l1: float
    length: int
    wraps: float
    rotated: bool = True
    """Whether rows are rotated first, so that the numbers of their sum have similar magnitudes."""


OTHER_PARTY = {
    "server": "readers",
    "readers": "server",
    "sites": "others",
    "others": "sites",
}
"""The second adversary of distributed noise, by the adversary whose guarantee the budget bounds.
"sites" are the server with colluding sites, and "others" are all except a client's own site."""

PARTY_WORDS = {
    "server": "the server",
    "readers": "readers of the releases",
    "sites": "the server, readers and colluding sites",
    "others": "all but a client's own site",
    "clients": "the server and colluding clients",
}
"""Adversaries of distributed noise, in words."""


class SharedNoise(Protocol):
    """A mechanism with distributed noise: clients add shares, which a secure sum adds up."""

    tolerance: float
    """Fraction of an expected cohort that may drop out of a sum."""

    @property
    def clip(self) -> float:
        """Initial clipping norm."""

    @property
    def layered(self) -> bool:
        """Whether clients add noise in layers, and a sum removes the layers in excess."""

    @property
    def against(self) -> str:
        """Adversary whose guarantee the budget bounds: "server", "readers", or "sites"."""

    @property
    def honest(self) -> float:
        """Lower bound on the fraction of the noise that honest clients add and keep secret."""

    def grid(self) -> IntegerGrid:
        """Returns the integer encoding of rows. Raises `Refused` if the bits are too few."""

    def events(self, witness: Witness, exchanges: int) -> dict[str, Event]:
        """Returns the round's event by adversary: "server", "readers"; or "sites", "others"."""


def shares_noise(mechanism: Mechanism) -> TypeGuard[SharedNoise]:
    """Whether the noise is distributed: clients add its shares in a secure sum."""
    return mechanism.trust == "sum"
