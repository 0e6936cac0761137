"""The public constants of a run that a mechanism may depend on, and the parties that add noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

from privfed.privacy.noise.shares import WASTE, Layers

_EXACT = 1e-9
"""A tolerance that compensates the rounding of a product before ceil."""


def whole_sites(part: float, sites: int) -> int:
    """Returns k, the number of colluding sites: `part` times `sites`, rounded up, at least one.

    At least one is counted, since every site is curious: it knows its own share of noise and its
    clients.
    """
    return max(1, math.ceil(part * sites - _EXACT))


@dataclass(frozen=True)
class SiteNoise:
    """Noise of `sites`, of which at least `minimum` survive; that of `colluders` does not count.

    Colluders are Byzantine, or collude with the server. The theorem (rules of proof, section 9.1)
    counts only the noise of H, the survivors without colluders, at least `counted` sites. The
    variance of the noise of H is at least (z C)^2, so z refers to the noise that the proof counts.
    If sites form regions (`privfed.secure.regional`), `minimum` and `colluders` refer to each
    region, and H has the sites of `regions` of them.

    *Minimum*: each site adds (z C)^2 / counted. *Layers*: each site adds a base of
    (z C)^2 / (sites - colluders), and layers sized for sites - colluders sites, too. So m survivors
    together keep m / (m - colluders) times (z C)^2, or up to 5 % more, and any m - colluders of
    them keep at least (z C)^2.
    """

    sites: int
    minimum: int
    colluders: int
    regions: int = 1

    @property
    def counted(self) -> int:
        """Least number |H| of sites whose noise the proof counts."""
        return self.regions * (self.minimum - self.colluders)

    @property
    def most_dropouts(self) -> int:
        """Largest number of sites that may drop out, for which layers of noise compensate."""
        return self.sites - self.minimum

    def shares(self, layered: bool) -> int:
        """Returns the number of shares (or, if `layered`, bases) whose variances sum to (z C)^2."""
        return self.sites - self.colluders if layered else self.counted

    def layers(self, variance: float, kind: str) -> Layers:
        """Returns layers of noise of a `kind` that sum to `variance` without colluders' noise."""
        return Layers(variance, self.most_dropouts / self.sites, self.colluders, WASTE, kind)

    def added_by(self, survivors: int, layered: bool) -> float:
        """Returns the variance of the noise of all `survivors` in the sum, over (z C)^2.

        For `layered` noise it is that after the removal of layers; coarse layers leave up to 5 %
        more.
        """
        return survivors / (survivors - self.colluders if layered else self.counted)


@dataclass(frozen=True)
class CohortSize:
    """Bounds on the number of clients whose rows may be in one sum.

    Attributes:
      expected: expected cohort size over the declared population.
      largest: largest cohort that a sum accepts.
      canaries: upper bound on the expected number of canary clients, in addition to `expected`.
      byzantine: largest number of Byzantine clients.
    """

    expected: int
    largest: int
    canaries: int = 0
    byzantine: int = 0

    @property
    def likely_largest(self) -> int:
        """A cohort size that is exceeded with negligible probability, at most `largest`.

        It is mean + 6 Poisson standard deviations, with mean `expected` + `canaries`, rounded up.
        """
        mean = self.expected + self.canaries
        return min(self.largest, math.ceil(mean + 6 * math.sqrt(mean)))


@dataclass(frozen=True)
class ClientShares:
    """The shares of noise that the clients of a cohort add.

    Counted noise is the part of the noise that the privacy guarantee relies on.

    Attributes:
      minimum: least number of surviving clients; with fewer the sum aborts.
      counted: least number of clients that add the counted noise.
      honest: lower bound on the fraction of the counted noise that honest clients add and neither
        the server nor a colluder knows.
      added: lower bound on the fraction of the counted noise that is added if Byzantine clients
        add none.
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
      noise: the division of distributed noise among the parties that add it, clients or sites.
      bits: bits b of the secure sum's modulus 2^b; may be 0 if noise is not distributed.
      length: number of values in a client's message.
      against: the adversary whose guarantee the budget bounds: "server", "readers" or "sites".
    """

    cohort: CohortSize
    noise: ClientShares | SiteNoise
    bits: int = 0
    length: int = 0
    against: str = "server"

    @property
    def sites(self) -> SiteNoise | None:
        """The noise of sites; None if clients add it."""
        return self.noise if isinstance(self.noise, SiteNoise) else None

    @property
    def clients(self) -> ClientShares:
        """The noise of clients. Raises `TypeError` if sites add it."""
        if isinstance(self.noise, SiteNoise):
            raise TypeError("sites add the noise; clients add none")
        return self.noise
