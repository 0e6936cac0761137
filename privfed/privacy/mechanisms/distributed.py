"""Distributed noise: whole numbers that clients add before the sum, which nobody sees without."""

from __future__ import annotations

import math
from typing import Literal

from accounting.noises import DiscreteGaussians, Skellam
from accounting.releases import Unprotected
from privfed.privacy.integers import Share
from privfed.privacy.mechanisms.distributed_noise import DistributedNoise
from privfed.privacy.noise.shares import WASTE, DiscreteGaussianShare, Layers, SkellamShare

_EXACT = 1e-9
"""A tolerance that shields floor from the last bits of a product."""


class SkellamNoise(DistributedNoise):
    """Distributed Skellam noise: each client adds a share, so that the server never sees less.

    Releases (sum of encoded, clipped updates + Skellam of variance (z C)^2 or more) / (q N).

    *What is released*: that vector for every exchange of the round. Rows are clipped, rotated by
    public signs, divided by a public step and rounded to whole numbers; the sum is modulo 2^bits,
    and unwrapping, rotating back and dividing are post-processing.

    *Unit and relation*: one client; against the server its contribution against zero (zero-out,
    not amplified), as against readers of the aggregates, unless the noise is exact `layers`, the
    cohort Poisson and no client hostile: then adding or removing a client, amplified.

    *Sensitivity*: of the encoded whole numbers, `Codec.bound` in L2 and min(sqrt(d), L2) times that
    in L1, d the padded length.

    *Sizing*: with "minimum", `secure.minimum` clients (or 1 - `tolerance` of the expected cohort)
    make up the noise, more only add to it, and with fewer the sum aborts. With "layers" noise is
    taken off again for whoever stayed, so that the total is (z C)^2, or up to 5 % more by how many
    dropped; exactly that where the budget is held against readers, and nobody is hostile.

    *Trust*: honest survivors, and the secure sum. Hostile clients' noise (`aggregation.byzantine`)
    is never counted, and colluding clients' (`secure.colluders`) not against the server. Readers
    take no part: a client, who knows its own share and the cohort, is one of the colluders.

    Source: Agarwal, Kairouz & Liu 2021; layers: Jiang et al. 2024 (add-then-remove).
    """

    sizing: Literal["minimum", "layers"] = "minimum"
    """"minimum": as many clients as have to stay make up the noise. "layers": noise is taken off
    for whoever stayed, so that the total is exact."""

    @property
    def layered(self) -> bool:
        return self.sizing == "layers"

    def _shares(self) -> int:
        setting = self._planned_setting()
        if self.layered and not setting.sites:  # whatever the count, the total is z clip
            return setting.cohort.expected
        return super()._shares()

    def _most_deviation(self) -> float:
        """The largest deviation, which is less in layers.

        Of few survivors each keeps more, and that has to be drawn, too.
        """
        most = super()._most_deviation()
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
    """Distributed discrete Gaussian noise: sums of discrete Gaussians, nearly one themselves.

    As `skellam` with sizing "minimum"; its sum is not closed, so that there are no layers and
    nothing is amplified, and each share has a deviation of at least 2 steps.

    Source: Kairouz, Liu & Steinke 2021, algorithm 1 and theorem 1.
    """

    noise_sampler: Literal["table", "exact"] = "table"
    """"exact" draws from random bits and whole numbers alone, some twenty times slower."""

    def noise_on_update(self, size: int) -> float:
        if self._noise() and self.grid().share < 2:
            raise self._too_few_bits()
        return super().noise_on_update(size)

    def _most_deviation(self) -> float:
        return 399.0 if self.noise_sampler == "exact" else super()._most_deviation()

    def _release(self, counted: float, exchanges: int) -> DiscreteGaussians | Unprotected:
        grid, clients = self.grid(), math.floor(self._shares() * counted + _EXACT)
        if self._noise() and (grid.share < 2 or clients < 1):
            return Unprotected("shares of less than 2 steps, or of nobody, have no proof")
        deviation = self.share().deviation
        return DiscreteGaussians(
            deviation, max(clients, 1), grid.l2, grid.l1, grid.length, exchanges
        )

    def share(self) -> DiscreteGaussianShare:
        exact = self.noise_sampler == "exact"
        deviation = self.grid().share
        if exact:  # a whole variance, never less
            deviation = math.sqrt(math.ceil(deviation**2))
        return DiscreteGaussianShare(deviation, exact)
