"""The shares of which clients make up distributed noise, in whole steps (`Share`)."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privfed.core.streams import Keys
from privfed.privacy.integers import Integers
from privfed.privacy.noise.discrete_gaussian import discrete_gaussian
from privfed.privacy.noise.table_sampler import (
    TOTAL_VARIATION,
    Uniforms,
    discrete_gaussian_table,
    reach,
    skellam_table,
)


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

    Of n clients up to T, the part `tolerance`, may be gone; with more the sum aborts. With
    `boundaries` 0 = d_0 < d_1 < ... < d_L = T, each client adds Skellam noise of variance v / n
    and, in layers i = 1, ..., L, of v / (n - d_i) - v / (n - d_{i-1}). With D gone, d_i the first
    boundary from D on, the layers above i are taken off all survivors, and layer i off `fewer` of
    them, those with the lowest numbers: off floor((d_i - D) (n - d_{i-1}) / (d_i - d_{i-1})).

    *Proof that v is left.* Whose layers stay follows from who is gone alone. Base and layers are
    independent, and Skellams add up: base and i layers of one client to the variance
    s_i = v / (n - d_i), as all but the ends cancels, of which layer i is
    l_i = v (d_i - d_{i-1}) / ((n - d_i) (n - d_{i-1})). All n - D survivors keep
    (n - D) s_i - `fewer` l_i, which is v at least as `fewer` l_i <= v (d_i - D) / (n - d_i) = (d_i
    - D) s_i; and less than v + l_i. It is v exactly where nothing is rounded down: at boundaries,
    so also where nobody is gone.

    Each boundary is the largest with which no D leaves more than 1 + `waste` times v. Mostly that
    is T at once, and there is one layer. With a `waste` of 0 each step divides n - d_{i-1}, and the
    total is v whatever D: only then does the noise not tell how many took part, as amplification
    against readers asks for. (In XNoise, Jiang et al. 2024, all of 0 to T are boundaries, and a
    layer comes off everybody or nobody.)

    *Whose noise is known*, or who adds none, takes s_i at most from what is left: k such clients
    leave v (1 - k / (n - d_i)), so v (1 - k / (n - T)), whoever else loses a layer. *Where clients
    lie* to k others about shares, these count as gone too: D is up to k more than there are, and
    layers stay that need not, k s_i at most.

    With k `colluders`, whose noise does not count, n is replaced by n - k: of n - k - D others,
    whichever lose a layer, v is left by the same proof. All survivors keep k s_i more, and
    boundaries are such that no D leaves more than 1 + `waste` times (n - D) v / (n - k - D), what
    they would keep with a boundary at D (PRIVACY, section 9.5).
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
        return _boundaries(clients, self.colluders, self.most_gone(clients), self.waste)

    def count(self, clients: int) -> int:
        """L, how many layers each of `clients` has."""
        return len(self.boundaries(clients)) - 1

    def staying(self, clients: int, gone: int) -> int:
        """i, how many layers stay at most with `gone` of `clients` gone: all for more than T."""
        return min(bisect.bisect_left(self.boundaries(clients), gone), self.count(clients))

    def fewer(self, clients: int, gone: int) -> int:
        """How many survivors keep a layer less than `staying`: less than there are."""
        until = self.staying(clients, gone)
        if not until or gone > self.most_gone(clients):
            return 0
        boundaries, counted = self.boundaries(clients), clients - self.colluders
        return _fewer(counted, boundaries[until - 1], boundaries[until], gone)

    def keeping(self, clients: int, gone: int, survivors: Iterable[int]) -> dict[int, int]:
        """How many layers each of `survivors` keeps, with `gone` of `clients` gone."""
        staying, fewer = self.staying(clients, gone), self.fewer(clients, gone)
        ordered = enumerate(sorted(survivors))
        return {who: staying - (place < fewer) for place, who in ordered}

    def base(self, clients: int) -> SkellamShare:
        """What each of `clients` adds below its layers."""
        return SkellamShare(self.variance / (clients - self.colluders))

    def layer(self, clients: int, number: int) -> SkellamShare:
        """Layer `number`, from 1, of each of `clients`."""
        before, until = self.boundaries(clients)[number - 1 : number + 1]
        counted = clients - self.colluders
        added = (until - before) / ((counted - before) * (counted - until))
        return SkellamShare(self.variance * added)

    def remaining(self, clients: int, staying: int) -> SkellamShare:
        """What the base and the first `staying` layers of one client are together."""
        boundary = self.boundaries(clients)[staying]
        return SkellamShare(self.variance / (clients - self.colluders - boundary))

    def draw(self, keys: Keys, count: int) -> Integers:
        """Raises `ValueError`: no client draws its layers by itself."""
        raise ValueError("layers are added by the secure sum")


@functools.lru_cache(maxsize=4096)
def _boundaries(clients: int, colluders: int, most: int, waste: float) -> tuple[int, ...]:
    """Boundaries from 0 to `most`, each the largest that wastes no more."""
    boundaries = [0]
    while (before := boundaries[-1]) < most:
        tried = range(most, before, -1)
        boundaries.append(next(d for d in tried if _spends(clients, colluders, before, d, waste)))
    return tuple(boundaries)


def _spends(clients: int, colluders: int, before: int, until: int, waste: float) -> bool:
    """Whether a layer between two boundaries leaves no more than 1 + `waste` times what is asked.

    In whole numbers: both sides of ((n - D) s_i - fewer l_i) / v <= (1 + waste) (n - D) /
    (n - k - D) times (n - k - d_i) (n - k - d_{i-1}) (n - k - D). Holds for `until` = `before` + 1.
    """
    counted, step = clients - colluders, until - before

    def within(gone: int) -> bool:
        survivors = clients - gone
        left = survivors * (counted - before) - _fewer(counted, before, until, gone) * step
        asked = survivors * (counted - before) * (counted - until)
        return left * (counted - gone) <= asked * (1 + waste)

    return all(map(within, range(until, before, -1)))


def _fewer(counted: int, before: int, until: int, gone: int) -> int:
    """How many of `counted` keep a layer less, with `gone` between its two boundaries."""
    return (until - gone) * (counted - before) // (until - before)
