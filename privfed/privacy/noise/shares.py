"""Shares of distributed noise that clients add, in integer steps (`Share`)."""

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
    """Skellam noise of `variance`; none for zero.

    Sums of Skellams are Skellam: m clients' shares have variance m `variance`.
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
        """Yields `count` draws from the numbers of `source`, as `DistributionTable.blocks`."""
        if not self.variance:
            return iter(())
        return skellam_table(self.variance).blocks(source, count)


@dataclass(frozen=True)
class DiscreteGaussianShare:
    """Discrete Gaussian noise of standard deviation `std`; none for zero.

    `exact` draws use random bits and integers only, for an integer variance; others use a table.
    """

    std: float
    exact: bool = False
    layered: ClassVar[bool] = False

    @property
    def total_variation(self) -> float:
        return 0.0 if self.exact or not self.std else TOTAL_VARIATION

    @property
    def most(self) -> int:
        return math.ceil(40 * self.std)

    def draw(self, keys: Keys, count: int) -> Integers:
        if not self.std:
            return np.zeros(count, dtype=np.int64)
        if self.exact:
            return discrete_gaussian(keys, round(self.std**2), count)
        return discrete_gaussian_table(self.std).draw(keys, count)


WASTE = 0.05
"""Largest relative excess of the variance of noise in coarse layers."""


@dataclass(frozen=True)
class Layers:
    """Noise in layers, from which a secure sum removes the excess added by survivors.

    Of n clients up to T, the fraction `tolerance`, may drop out; with more dropouts the sum aborts.
    With `boundaries` 0 = d_0 < d_1 < ... < d_L = T, each client adds Skellam noise of variance v /
    n and, in layers i = 1, ..., L, of v / (n - d_i) - v / (n - d_{i-1}). With D dropouts, d_i the
    first boundary at or above D, the layers above i are removed for all survivors, and layer i for
    `fewer` of them, those with the lowest numbers: for floor((d_i - D) (n - d_{i-1}) / (d_i -
    d_{i-1})).

    *Proof that v remains.* The removed layers depend on the dropouts only. Base and layers are
    independent, and Skellams add up: the base and i layers of one client sum to the variance s_i =
    v / (n - d_i), by a telescoping sum in which layer i is l_i = v (d_i - d_{i-1}) / ((n - d_i) (n
    - d_{i-1})). All n - D survivors keep (n - D) s_i - `fewer` l_i, which is at least v as `fewer`
    l_i <= v (d_i - D) / (n - d_i) = (d_i - D) s_i; and less than v + l_i. It is exactly v where
    nothing is rounded down: at boundaries, and hence also without dropouts.

    Each boundary is the largest for which no D leaves more than 1 + `waste` times v. Mostly that is
    T at once, and there is one layer. With a `waste` of 0 each step divides n - d_{i-1}, and the
    total is v for any D: only then does the noise not reveal the number of participants, as
    amplification against readers requires. (In XNoise, Jiang et al. 2024, all of 0 to T are
    boundaries, and a layer is removed for all survivors or none.)

    *Clients whose noise is known*, or that add none, reduce the remaining noise by at most s_i
    each: k such clients leave v (1 - k / (n - d_i)), so at least v (1 - k / (n - T)), whichever
    other clients lose a layer. *If Byzantine clients send invalid shares* to k others, these count
    as dropouts as well: D is up to k too large, and layers with at most k s_i are kept
    unnecessarily.

    With k `colluders`, whose noise does not count, n is replaced by n - k: of n - k - D others,
    whichever lose a layer, v remains by the same proof. All survivors keep k s_i more, and
    boundaries are such that no D leaves more than 1 + `waste` times (n - D) v / (n - k - D), which
    they would keep with a boundary at D (rules of proof, section 9.5).
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

    def most_dropouts(self, clients: int) -> int:
        """Returns T, the largest number of `clients` that may drop out, fewer than all."""
        return min(math.floor(self.tolerance * clients + 1e-9), clients - 1 - self.colluders)

    def boundaries(self, clients: int) -> tuple[int, ...]:
        """Returns d_0 = 0 to d_L = T: the numbers of dropouts that the layers compensate."""
        return _boundaries(clients, self.colluders, self.most_dropouts(clients), self.waste)

    def count(self, clients: int) -> int:
        """Returns L, the number of layers of each of `clients`."""
        return len(self.boundaries(clients)) - 1

    def staying(self, clients: int, gone: int) -> int:
        """Returns i, the number of layers kept with `gone` dropouts; all layers beyond T."""
        return min(bisect.bisect_left(self.boundaries(clients), gone), self.count(clients))

    def fewer(self, clients: int, gone: int) -> int:
        """Returns the number of survivors (never all) that keep one layer less than `staying`."""
        until = self.staying(clients, gone)
        if not until or gone > self.most_dropouts(clients):
            return 0
        boundaries, counted = self.boundaries(clients), clients - self.colluders
        return _fewer(counted, boundaries[until - 1], boundaries[until], gone)

    def keeping(self, clients: int, gone: int, survivors: Iterable[int]) -> dict[int, int]:
        """Returns the number of layers that each survivor keeps after `gone` dropouts."""
        staying, fewer = self.staying(clients, gone), self.fewer(clients, gone)
        ordered = enumerate(sorted(survivors))
        return {who: staying - (place < fewer) for place, who in ordered}

    def base(self, clients: int) -> SkellamShare:
        """Returns the noise that each of `clients` adds below its layers."""
        return SkellamShare(self.variance / (clients - self.colluders))

    def layer(self, clients: int, number: int) -> SkellamShare:
        """Returns layer `number`, from 1, of each of `clients`."""
        before, until = self.boundaries(clients)[number - 1 : number + 1]
        counted = clients - self.colluders
        added = (until - before) / ((counted - before) * (counted - until))
        return SkellamShare(self.variance * added)

    def remaining(self, clients: int, staying: int) -> SkellamShare:
        """Returns the sum of the base and the first `staying` layers of one client."""
        boundary = self.boundaries(clients)[staying]
        return SkellamShare(self.variance / (clients - self.colluders - boundary))

    def draw(self, keys: Keys, count: int) -> Integers:
        """Raises `ValueError`: layers are sampled by the secure sum, not by a client."""
        raise ValueError("layers are added by the secure sum")


@functools.lru_cache(maxsize=4096)
def _boundaries(clients: int, colluders: int, most: int, waste: float) -> tuple[int, ...]:
    """Returns boundaries from 0 to `most`, each the largest within the allowed waste."""
    boundaries = [0]
    while (before := boundaries[-1]) < most:
        tried = range(most, before, -1)
        boundaries.append(next(d for d in tried if _spends(clients, colluders, before, d, waste)))
    return tuple(boundaries)


def _spends(clients: int, colluders: int, before: int, until: int, waste: float) -> bool:
    """Whether a layer between two boundaries keeps the noise within 1 + `waste` of the required.

    In integers: both sides of ((n - D) s_i - fewer l_i) / v <= (1 + waste) (n - D) / (n - k - D)
    times (n - k - d_i) (n - k - d_{i-1}) (n - k - D). Holds for `until` = `before` + 1.
    """
    counted, step = clients - colluders, until - before

    def within(gone: int) -> bool:
        survivors = clients - gone
        left = survivors * (counted - before) - _fewer(counted, before, until, gone) * step
        requested = survivors * (counted - before) * (counted - until)
        return left * (counted - gone) <= requested * (1 + waste)

    return all(map(within, range(until, before, -1)))


def _fewer(counted: int, before: int, until: int, gone: int) -> int:
    """The number of `counted` clients that keep one layer less after `gone` dropouts."""
    return (until - gone) * (counted - before) // (until - before)
