"""The public constants of a run that a mechanism may depend on, and the parties that add noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

from privfed.privacy.noise.shares import WASTE, Layers

_EXACT = 1e-9
"""A tolerance that shields ceil from the last bits of a product."""


def whole_sites(part: float, sites: int) -> int:
    """k, how many of `sites` the `part` of them is that may work against the others: never none.

    Every site is curious, so that one at least knows its own share of noise and its own clients.
    """
    return max(1, math.ceil(part * sites - _EXACT))


@dataclass(frozen=True)
class SiteNoise:
    """Of `sites`, all of which take part, `minimum` stay at least; `colluders` are not counted.

    They are hostile, or work with the server: the theorem of PRIVACY, section 9.1, counts the noise
    of H alone, the survivors less these, of whom there are `counted` at least. Their noise is
    (z C)^2 or more, so that z is about what the proof counts:

    *Minimum*: each site adds (z C)^2 / counted. *Layers*: a base of (z C)^2 / (sites - colluders),
    and layers by the same number, so that m survivors together keep m / (m - colluders) times
    (z C)^2, or 5 % more, and any m - colluders of them (z C)^2.
    """

    sites: int
    minimum: int
    colluders: int

    @property
    def counted(self) -> int:
        """How many sites' noise the proof counts: |H| at least."""
        return self.minimum - self.colluders

    @property
    def most_gone(self) -> int:
        """How many sites may be missing, for whom layers make up."""
        return self.sites - self.minimum

    def shares(self, layered: bool) -> int:
        """How many shares, or bases of layers, make up a variance of (z C)^2."""
        return self.sites - self.colluders if layered else self.counted

    def layers(self, variance: float) -> Layers:
        """Layers of which those who stay make up `variance` without the colluders' noise."""
        return Layers(variance, self.most_gone / self.sites, self.colluders, WASTE)

    def added_by(self, survivors: int, layered: bool) -> float:
        """What all `survivors` add together, over (z C)^2."""
        return survivors / (survivors - self.colluders if layered else self.counted)


@dataclass(frozen=True)
class CohortSize:
    """Bounds on the number of clients whose rows one sum may have.

    Attributes:
      expected: expected clients of the declared population.
      largest: the most clients that the sampler draws.
      canaries: the most canary clients expected in addition.
      byzantine: the most Byzantine clients.
    """

    expected: int
    largest: int
    canaries: int = 0
    byzantine: int = 0

    @property
    def likely_largest(self) -> int:
        """A size exceeded with negligible probability: mean + 6 Poisson standard deviations."""
        mean = self.expected + self.canaries
        return min(self.largest, math.ceil(mean + 6 * math.sqrt(mean)))


@dataclass(frozen=True)
class ClientShares:
    """The shares of noise that the clients of a cohort add.

    Attributes:
      minimum: fewest surviving clients; the sum aborts below.
      counted: fewest clients that share the counted noise.
      honest: lower bound on the part of the counted noise that honest clients add and no colluder
        knows.
      added: lower bound on the part that Byzantine clients cannot leave out.
    """

    minimum: int
    counted: int = 1
    honest: float = 1.0
    added: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The public constants of a run that a mechanism may depend on.

    Attributes:
      cohort: the clients of a round.
      noise: the parties that add distributed noise, clients or sites.
      bits: modulus of the secure sum, in bits; 0 without one.
      length: length of a message.
      against: the party whose guarantee the budget bounds.
    """

    cohort: CohortSize
    noise: ClientShares | SiteNoise
    bits: int = 0
    length: int = 0
    against: str = "server"

    @property
    def sites(self) -> SiteNoise | None:
        """The noise of sites; None where clients add it."""
        return self.noise if isinstance(self.noise, SiteNoise) else None

    @property
    def clients(self) -> ClientShares:
        """The noise of clients. Raises `TypeError` where sites add it."""
        if isinstance(self.noise, SiteNoise):
            raise TypeError("sites add the noise here, and clients none")
        return self.noise
