"""Distributed noise: integer noise that clients add before a secure sum."""

from __future__ import annotations

import math
from typing import Literal

from accounting.noises import DiscreteGaussians, Skellam
from accounting.releases import Unprotected
from privfed.privacy.integers import Share
from privfed.privacy.mechanisms.distributed_noise import DistributedNoise
from privfed.privacy.noise.shares import WASTE, DiscreteGaussianShare, Layers, SkellamShare

_EXACT = 1e-9
"""Tolerance that protects floor from the rounding of a product."""


class SkellamNoise(DistributedNoise):
    """Distributed Skellam noise: each client adds a share, so the server sees only the noised sum.

    Releases (sum of encoded, clipped updates + Skellam of variance (z C)^2 or more) / (q N).

    *Releases*: that vector for every exchange of the round. Rows are clipped, rotated by public
    signs, divided by a public step and rounded to integers; the sum is modulo 2^bits, and
    unwrapping, rotating back and dividing are post-processing.

    *Unit and adjacency*: one client. Against the server, and against readers of the aggregates, its
    contribution against zero (zero-out, not amplified). Against readers it is add/remove with
    amplification if the noise is exact `layers`, the sampler is Poisson, and no client is
    Byzantine.

    *Sensitivity*: that of the encoded integers, `Codec.bound` in L2 and min(sqrt(d), L2) times that
    in L1, d the padded length.

    *Sizing*: with "minimum", `secure.minimum` clients (or 1 - `tolerance` of the expected cohort)
    provide the noise; more clients only add to it, and with fewer the sum aborts. With "layers",
    excess noise is removed after dropouts are known, so that the total is (z C)^2, or up to 5 %
    more depending on the number of dropouts; it is exact if the budget bounds the guarantee against
    readers and no client is Byzantine.

    *Trust*: honest survivors, and the secure sum. The noise of Byzantine clients
    (`aggregation.byzantine`) is never counted, and that of colluding clients (`secure.colluders`)
    not against the server. Readers do not take part: a client knows its own share and the cohort,
    and is therefore counted as a colluder.

    Source: Agarwal, Kairouz & Liu 2021; layers: Jiang et al. 2024 (add-then-remove).
    """

    sizing: Literal["minimum", "layers"] = "minimum"
    """"minimum": the least number of survivors provides the noise. "layers": excess noise is
    removed after dropouts are known, so that the total is exact."""

    @property
    def layered(self) -> bool:
        return self.sizing == "layers"

    def _shares(self) -> int:
        setting = self._planned_setting()
        if self.layered and not setting.sites:  # the total is z clip for any count
            return setting.cohort.expected
        return super()._shares()

    def _largest_std(self) -> float:
        """Returns the largest standard deviation, which is smaller with layers.

        With few survivors each keeps more noise, which must be sampled as well.
        """
        most = super()._largest_std()
        setting = self._planned_setting()
        if not self.layered:
            return most
        fewest = setting.sites.counted if setting.sites else setting.clients.counted
        return most * math.sqrt(fewest / self._shares())

    def _release(self, counted: float, exchanges: int) -> Skellam:
        grid = self.grid()
        variance = (self._noise() * self.clip / grid.step) ** 2
        return Skellam(variance * counted, grid.l2, grid.l1, exchanges)

    def share(self) -> Share:
        grid = self.grid()
        variance = (self._noise() * self.clip / grid.step) ** 2
        sites = self._planned_setting().sites
        if self.layered:
            waste = 0.0 if self._exact else WASTE
            return sites.layers(variance) if sites else Layers(variance, self.tolerance, 0, waste)
        return SkellamShare(variance / self._shares())

    def noise_on_update(self, size: int) -> float:
        exact = self.layered and not self._planned_setting().sites and self.grid()
        return self._noise() if exact else super().noise_on_update(size)


class DiscreteGaussianNoise(DistributedNoise):
    """Distributed discrete Gaussian noise: sums that are nearly discrete Gaussian.

    As `skellam` with sizing "minimum". Sums of discrete Gaussians are not discrete Gaussian, so
    there are no layers and no amplification, and each share has a standard deviation of at least 2
    steps.

    Source: Kairouz, Liu & Steinke 2021, algorithm 1 and theorem 1.
    """

    noise_sampler: Literal["table", "exact"] = "table"
    """"table" samples by a table; "exact" uses random bits and
    integers only, about twenty times slower."""

    def noise_on_update(self, size: int) -> float:
        if self._noise() and self.grid().share < 2:
            raise self._too_few_bits()
        return super().noise_on_update(size)

    def _largest_std(self) -> float:
        return 399.0 if self.noise_sampler == "exact" else super()._largest_std()

    def _release(self, counted: float, exchanges: int) -> DiscreteGaussians | Unprotected:
        grid, clients = self.grid(), math.floor(self._shares() * counted + _EXACT)
        if self._noise() and (grid.share < 2 or clients < 1):
            return Unprotected("shares of less than 2 steps, or of no client, have no proof")
        std = self.share().std
        return DiscreteGaussians(std, max(clients, 1), grid.l2, grid.l1, grid.length, exchanges)

    def share(self) -> DiscreteGaussianShare:
        exact = self.noise_sampler == "exact"
        std = self.grid().share
        if exact:  # an integer variance, rounded up
            std = math.sqrt(math.ceil(std**2))
        return DiscreteGaussianShare(std, exact)
