"""The shares of which clients make up distributed noise, in whole steps (`Share`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privfed.privacy.integers import Integers
from privfed.privacy.noise.discrete_gaussian import discrete_gaussian
from privfed.privacy.noise.table_sampler import (
    TOTAL_VARIATION,
    discrete_gaussian_table,
    reach,
    skellam_table,
)
from privfed.streams import Keys


@dataclass(frozen=True)
class SkellamShare:
    """Skellam noise of `variance`; none at all for zero.

    Sums of Skellams are Skellam: of m clients' shares, of variance m `variance`.
    """

    variance: float
    layered: ClassVar[bool] = False

    @property
    def total_variation(self) -> float:
        return TOTAL_VARIATION if self.variance else 0.0

    @property
    def most(self) -> int:
        return reach(math.sqrt(self.variance)) if self.variance else 0

    def draw(self, keys: Keys, count: int) -> Integers:
        if not self.variance:
            return np.zeros(count, dtype=np.int64)
        return skellam_table(self.variance).draw(keys, count)


@dataclass(frozen=True)
class DiscreteGaussianShare:
    """Discrete Gaussian noise of `deviation`; none at all for zero.

    `exact` draws come from random bits and whole numbers alone, of a whole variance; others from a
    table.
    """

    deviation: float
    exact: bool = False
    layered: ClassVar[bool] = False

    @property
    def total_variation(self) -> float:
        return 0.0 if self.exact or not self.deviation else TOTAL_VARIATION

    @property
    def most(self) -> int:
        return math.ceil(40 * self.deviation)

    def draw(self, keys: Keys, count: int) -> Integers:
        if not self.deviation:
            return np.zeros(count, dtype=np.int64)
        if self.exact:
            return discrete_gaussian(keys, round(self.deviation**2), count)
        return discrete_gaussian_table(self.deviation).draw(keys, count)


@dataclass(frozen=True)
class Layers:
    """Noise in layers, of which a secure sum takes off what too many survivors added.

    Of n clients each adds Skellam noise of variance v / n and, in layer k = 1, 2, ..., T, of
    v / ((n - k + 1) (n - k)). With D of them gone, the others' base and first D layers make up
    (n - D) v / (n - D) = v: layers above D are taken off (Jiang et al. 2024, XNoise). T is the part
    `tolerance` of n; with more gone the sum aborts.

    With k `colluders`, whose noise does not count, n is replaced by n - k: the others' is v at
    least, and v exactly where k of those who stay collude (PRIVACY, section 9.5).
    """

    variance: float
    tolerance: float
    colluders: int = 0
    layered: ClassVar[bool] = True

    @property
    def total_variation(self) -> float:
        return TOTAL_VARIATION

    @property
    def most(self) -> int:
        return math.ceil(40 * math.sqrt(self.variance)) + 100

    def count(self, clients: int) -> int:
        """T, how many layers each of `clients` has: never as many as there are clients."""
        return min(math.floor(self.tolerance * clients + 1e-9), clients - 1 - self.colluders)

    def base(self, clients: int) -> SkellamShare:
        """What each of `clients` adds below its layers."""
        return SkellamShare(self.variance / (clients - self.colluders))

    def layer(self, clients: int, number: int) -> SkellamShare:
        """Layer `number`, from 1, of each of `clients`."""
        counted = clients - self.colluders
        return SkellamShare(self.variance / ((counted - number + 1) * (counted - number)))

    def remaining(self, clients: int, gone: int) -> SkellamShare:
        """What base and the first `gone` layers of one client are together."""
        return SkellamShare(self.variance / (clients - self.colluders - gone))

    def draw(self, keys: Keys, count: int) -> Integers:
        """Raises `ValueError`: no client draws its layers by itself."""
        raise ValueError("layers are added by the secure sum")
