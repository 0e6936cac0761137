"""The shares of which clients make up distributed noise, in whole steps (`Share`)."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privfed.privacy.integers import Integers
from privfed.privacy.noise.discrete_gaussian import discrete_gaussian
from privfed.privacy.noise.table_sampler import (
    TOTAL_VARIATION,
    discrete_gaussian_table,
    reach,
    skellam_table,
)
from privfed.privacy.noise.uniforms import Uniforms
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

    def blocks(self, source: Uniforms, count: int) -> Iterator[tuple[slice, NDArray[np.int32]]]:
        """`count` draws by the numbers of `source`, as `DistributionTable.blocks`."""
        if not self.variance:
            return iter(())
        return skellam_table(self.variance).blocks(source, count)


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


WASTE = 0.05
"""The part of the variance by which noise in coarse layers may be more than is asked for."""


@dataclass(frozen=True)
class Layers:
    """Noise in layers, of which a secure sum takes off what too many survivors added.

    Each of n clients adds Skellam noise of variance v / n and, in layers k = 1, ..., L, of
    v / (n - d_k) - v / (n - d_{k-1}), with `boundaries` 0 = d_0 < d_1 < ... < d_L = T. T is the
    part `tolerance` of n; with more gone the sum aborts. With D of them gone, d_k the first
    boundary from D on, the layers above k are taken off.

    *Proof that v is left*, and at most 1 + `waste` times that. The base and the first k layers are
    independent, and Skellams add up: what each of m = n - D survivors keeps is Skellam, and of its
    variance all but the ends cancels: v / (n - d_0) + sum_{i <= k} [v / (n - d_i) -
    v / (n - d_{i-1})] = v / (n - d_k). All together keep v (n - D) / (n - d_k), which is v at least
    as D <= d_k < n, and falls in D: from d_{k-1} + 1 to d_k it is the most at the first, and d_k is
    chosen so that (n - d_{k-1} - 1) / (n - d_k) is at most 1 + `waste`. It is v exactly where D is
    a boundary, so also where nobody is gone. Each boundary is the largest that may be, so that no
    choice has fewer layers: about ln(1 / (1 - `tolerance`)) / `waste` for any n. With a `waste` of
    0 the boundaries are all of 0 to T, and the total is v whatever D (Jiang et al. 2024, XNoise):
    only then does the noise not tell how many took part, as amplification against readers asks for.

    *Where clients lie* to k others about shares, these count as gone too: D is up to k more than
    there are, and layers stay that need not. v is left at least, m / (m - k) times as much at most.

    With k `colluders`, whose noise does not count, n is replaced by n - k: the others' is v at
    least, and at most 1 + `waste` times that where k of those who stay collude (PRIVACY, section
    9.5).
    """

    variance: float
    tolerance: float
    colluders: int = 0
    waste: float = 0.0
    layered: ClassVar[bool] = True

    @property
    def total_variation(self) -> float:
        return TOTAL_VARIATION

    @property
    def most(self) -> int:
        return math.ceil(40 * math.sqrt(self.variance)) + 100

    def most_gone(self, clients: int) -> int:
        """T, how many of `clients` may be gone: never as many as there are clients."""
        return min(math.floor(self.tolerance * clients + 1e-9), clients - 1 - self.colluders)

    def boundaries(self, clients: int) -> tuple[int, ...]:
        """d_0 = 0 to d_L = T: for how many of `clients` gone each layer makes up."""
        return _boundaries(clients - self.colluders, self.most_gone(clients), self.waste)

    def count(self, clients: int) -> int:
        """L, how many layers each of `clients` has."""
        return len(self.boundaries(clients)) - 1

    def staying(self, clients: int, gone: int) -> int:
        """How many layers stay with `gone` of `clients` gone: all of them for more than T."""
        return min(bisect.bisect_left(self.boundaries(clients), gone), self.count(clients))

    def base(self, clients: int) -> SkellamShare:
        """What each of `clients` adds below its layers."""
        return SkellamShare(self.variance / (clients - self.colluders))

    def layer(self, clients: int, number: int) -> SkellamShare:
        """Layer `number`, from 1, of each of `clients`."""
        before, until = self.boundaries(clients)[number - 1 : number + 1]
        counted = clients - self.colluders
        added = (until - before) / ((counted - before) * (counted - until))
        return SkellamShare(self.variance * added)

    def remaining(self, clients: int, gone: int) -> SkellamShare:
        """What base and those layers of one client are together that stay with `gone` gone."""
        boundary = self.boundaries(clients)[self.staying(clients, gone)]
        return SkellamShare(self.variance / (clients - self.colluders - boundary))

    def draw(self, keys: Keys, count: int) -> Integers:
        """Raises `ValueError`: no client draws its layers by itself."""
        raise ValueError("layers are added by the secure sum")


@functools.lru_cache(maxsize=4096)
def _boundaries(counted: int, most: int, waste: float) -> tuple[int, ...]:
    """The fewest boundaries from 0 to `most` that waste no more, of `counted` clients' noise."""
    boundaries = [0]
    while boundaries[-1] < most:
        staying = counted - boundaries[-1] - 1
        fewest = math.ceil(staying / (1 + waste) - 1e-9)
        boundaries.append(min(max(counted - fewest, boundaries[-1] + 1), most))
    return tuple(boundaries)
