"""Shares of distributed noise that clients add, in integer steps (`Share`)."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privfed.core.streams import Keys
from privfed.privacy.integers import Integers
from privfed.privacy.noise.discrete_gaussian import discrete_gaussian
from privfed.privacy.noise.table_sampler import (
    TOTAL_VARIATION,
    DistributionTable,
    Uniforms,
    discrete_gaussian_table,
    reach,
    skellam_table,
)

LEAST_GAUSSIAN = 3.0
"""Least standard deviation, in steps, of each discrete Gaussian in a sum."""
SMOOTHED = LEAST_GAUSSIAN**2 / 2
"""Variance, in squared steps, by which a sum of discrete Gaussians exceeds the charged Gaussian."""
JOINED = 6e-39
"""Total variation distance per coordinate and discrete Gaussian in a sum, from post-processing of a
Gaussian; above 2 exp(-2 pi^2 SMOOTHED) (see `DiscreteGaussianShare`)."""


class _FromTable:
    """Base of a party's share of noise that is drawn from a table of its distribution function.

    The noise is zero if the variance is zero.
    """

    variance: float | Fraction
    layered: ClassVar[bool] = False

    def _table(self) -> DistributionTable:
        raise NotImplementedError

    def draw(self, keys: Keys, count: int) -> Integers:
        if not self.variance:
            return np.zeros(count, dtype=np.int64)
        return self._table().draw(keys, count)

    def blocks(self, source: Uniforms, count: int) -> Iterator[tuple[slice, NDArray[np.int32]]]:
        """Yields `count` draws as `DistributionTable.blocks` does; no block for zero variance."""
        return self._table().blocks(source, count) if self.variance else iter(())


@dataclass(frozen=True)
class SkellamShare(_FromTable):
    """Skellam noise of `variance`; no noise if this is zero.

    Sums of Skellams are Skellam: m clients' shares have variance m `variance`.
    """

    variance: float | Fraction

    @property
    def total_variation(self) -> float:
        return TOTAL_VARIATION if self.variance else 0.0

    @property
    def most(self) -> int:
        return reach(math.sqrt(self.variance)) if self.variance else 0

    def _table(self) -> DistributionTable:
        return skellam_table(self.variance)


@dataclass(frozen=True)
class DiscreteGaussianShare(_FromTable):
    """Discrete Gaussian noise N_Z(0, `variance`), P[X = k] ~ exp(-k^2 / (2 `variance`)).

    A variance of zero means no noise. `exact` draws, for an integer variance, use only random bits
    and integers; other draws use a table.

    *Theorem.* Let X be an integer vector, and each coordinate of Y the sum of n independent
    discrete Gaussians of variances v_1, ..., v_n >= 9, in total v. Then X + Y is within a total
    variation distance of 6e-39 n per coordinate of N_Z(X + G, 4.5), where G ~ N(0, v - 4.5): of
    *post-processing of the Gaussian mechanism* X + G. Here N_Z(c, b) is the discrete Gaussian
    around a real c, P[k] ~ exp(-(k - c)^2 / (2 b)), coordinate by coordinate.

    *Proof.* Let f_v be the density of N(0, v), e(b) = 2 sum_{l >= 1} exp(-2 pi^2 b l^2), and T_b(c)
    = sum over the integers k of f_b(k - c). Poisson summation gives T_b(c) = 1 + 2 sum_{l >= 1}
    exp(-2 pi^2 b l^2) cos(2 pi l c), hence |T_b(c) - 1| <= e(b) for every c, and T_b(0) >= 1.

    1. *Joining a share.* f_a(m) f_b(k - m) = f_{a+b}(k) f_c(m - k a / (a + b)) with 1/c = 1/a +
       1/b. Summed over the integers m this is f_{a+b}(k) T_c(k a / (a + b)): f_{a+b}(k) up to a
       factor of 1 -+ e(c), *for each k*. A factor on f_a between two bounds remains between them.
       With a, b >= 9 we have c >= 4.5, so joining n shares one after another gives P[Y = k] =
       f_v(k) r(k) with (1 - e)^{n-1} (1 + e)^{-n} <= r(k) <= (1 + e)^{n-1}, e = e(4.5) < 5.4e-39;
       the divisors are the n normalisations T(0).
    2. *The approximating distribution.* P[N_Z(G, b) = k] = integral of
       f_{v-b}(x) f_b(k - x) / T_b(x) dx, with
       f_{v-b}(x) f_b(k - x) integrating to f_v(k): f_v(k) up to a factor between 1 / (1 + e(b)) and
       1 / (1 - e(b)), b = 4.5.
    3. Half the sum over k of the two differences from f_v(k), which itself adds up to at most 1 +
       e, is below 6e-39 n. N_Z(x + G, b) = x + N_Z(G, b) for an integer x, since the integers are
       invariant under shifts by integers.

    Distances add over coordinates and releases, also adaptive ones, and a smaller v is
    post-processing of a larger one. The approximating distribution depends on v alone, not on n.
    *Corollary*: whatever is proved for the Gaussian mechanism (of variance v - 4.5, and up to the
    distance, which is charged to delta) holds for X + Y, even if n depends on the data, but v does
    not.

    Step 1 is in Kairouz, Liu & Steinke 2021 for equal variances; step 2 is the convolution theorem
    of Peikert 2010 (Theorem 3.1), here for the integers and with constants.
    """

    variance: float | Fraction
    exact: bool = False

    @property
    def total_variation(self) -> float:
        if not self.variance:
            return 0.0
        return JOINED if self.exact else JOINED + TOTAL_VARIATION

    @property
    def most(self) -> int:
        return math.ceil(40 * math.sqrt(self.variance))

    def _table(self) -> DistributionTable:
        return discrete_gaussian_table(self.variance)

    def draw(self, keys: Keys, count: int) -> Integers:
        if self.exact and self.variance:
            return discrete_gaussian(keys, round(self.variance), count)
        return super().draw(keys, count)


SeededShare = SkellamShare | DiscreteGaussianShare
SHARES: Mapping[str, type[SeededShare]] = {
    "skellam": SkellamShare,
    "discrete_gaussian": DiscreteGaussianShare,
}
"""Noise whose sums have a distribution that depends on their variance alone."""


WASTE = 0.05
"""Largest relative excess of the variance of noise in coarse layers."""


@dataclass(frozen=True)
class Layers:
    """Noise in layers; a secure sum removes the layers that survivors added in excess.

    Of n clients up to T, the fraction `tolerance`, may drop out; with more dropouts the sum aborts.
    With `boundaries` 0 = d_0 < d_1 < ... < d_L = T, each client adds noise of a `kind` whose sums
    depend on their total variance alone (`SHARES`): of variance v / n and, in layers i = 1, ..., L,
    of v / (n - d_i) - v / (n - d_{i-1}). With D dropouts, d_i the first boundary at or above D, the
    layers above i are removed for all survivors, and layer i for `fewer` of them, those with the
    lowest numbers: for floor((d_i - D) (n - d_{i-1}) / (d_i - d_{i-1})).

    *Proof that v remains.* The removed layers depend on the dropouts only. Base and layers are
    independent, and variances add up: the base and i layers of one client sum to the variance s_i =
    v / (n - d_i), by a telescoping sum in which layer i is l_i = v (d_i - d_{i-1}) / ((n - d_i) (n
    - d_{i-1})). All n - D survivors keep (n - D) s_i - `fewer` l_i, which is at least v as `fewer`
    l_i <= v (d_i - D) / (n - d_i) = (d_i - D) s_i; and less than v + l_i. The remaining variance is
    exactly v where nothing is rounded down: at boundaries, and hence also without dropouts.

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
    whichever lose a layer, v remains by the same proof. All survivors together keep k s_i more.
    Boundaries are such that no D leaves more than 1 + `waste` times (n - D) v / (n - k - D), the
    variance with a boundary at D (rules of proof, section 9.5).
    """

    variance: float
    tolerance: float
    colluders: int = 0
    waste: float = 0.0
    kind: str = "skellam"
    layered: ClassVar[bool] = True

    @property
    def total_variation(self) -> float:
        return SHARES[self.kind](self.variance).total_variation

    @property
    def most(self) -> int:
        return math.ceil(40 * math.sqrt(self.variance)) + 100

    def most_dropouts(self, clients: int) -> int:
        """Returns T, the number of `clients` that may drop out; below `clients` - `colluders`."""
        return min(math.floor(self.tolerance * clients + 1e-9), clients - 1 - self.colluders)

    def boundaries(self, clients: int) -> tuple[int, ...]:
        """Returns d_0 = 0 to d_L = T: the numbers of dropouts that the layers compensate."""
        return _boundaries(clients, self.colluders, self.most_dropouts(clients), self.waste)

    def count(self, clients: int) -> int:
        """Returns L, the number of layers of each of `clients`."""
        return len(self.boundaries(clients)) - 1

    def layers_kept(self, clients: int, gone: int) -> int:
        """Returns i, the number of layers kept after `gone` dropouts; all layers if above T."""
        return min(bisect.bisect_left(self.boundaries(clients), gone), self.count(clients))

    def fewer(self, clients: int, gone: int) -> int:
        """Returns the number of survivors (never all) that keep only `layers_kept` - 1 layers.

        They are those with the lowest numbers; 0 if `gone` exceeds T.
        """
        until = self.layers_kept(clients, gone)
        if not until or gone > self.most_dropouts(clients):
            return 0
        boundaries, counted = self.boundaries(clients), clients - self.colluders
        return _fewer(counted, boundaries[until - 1], boundaries[until], gone)

    def keeping(self, clients: int, gone: int, survivors: Iterable[int]) -> dict[int, int]:
        """Returns, by survivor, the number of layers that it keeps after `gone` dropouts."""
        layers_kept, fewer = self.layers_kept(clients, gone), self.fewer(clients, gone)
        ordered = enumerate(sorted(survivors))
        return {who: layers_kept - (place < fewer) for place, who in ordered}

    def base(self, clients: int) -> SeededShare:
        """Returns the base noise, which each of `clients` adds in addition to its layers."""
        return self._share(Fraction(1, clients - self.colluders))

    def least_layer(self, most: int) -> float:
        """Returns a lower bound on the variance of each layer, for every n <= `most` clients.

        The bound is infinite if there can be no layer. With n' = n - k, layer i is v (d_i -
        d_{i-1}) / ((n' - d_i) (n' - d_{i-1})) >= v / (n' (n' - 1)). If k = 0 and n (1 -
        `tolerance`) `waste` >= 1, T is the only boundary, since survivors keep less than v + l_1,
        and l_1 <= v / (n - T); that layer is v T / (n (n - T)), and T >= `tolerance` n / 2 where
        there is one.
        """
        if self.most_dropouts(most) < 1:
            return math.inf
        few = counted = most - self.colluders
        if self.waste and not self.colluders:
            few = min(counted, math.ceil(1 / (self.waste * (1 - self.tolerance))))
        least = self.variance / (few * (few - 1)) if few > 1 else math.inf
        return min(least, self.variance * self.tolerance / (2 * most)) if few < counted else least

    def layer(self, clients: int, number: int) -> SeededShare:
        """Returns layer `number`, from 1, of each of `clients`."""
        before, until = self.boundaries(clients)[number - 1 : number + 1]
        counted = clients - self.colluders
        return self._share(Fraction(until - before, (counted - before) * (counted - until)))

    def remaining(self, clients: int, layers_kept: int) -> SeededShare:
        """Returns the sum of the base and the first `layers_kept` layers of one client."""
        boundary = self.boundaries(clients)[layers_kept]
        return self._share(Fraction(1, clients - self.colluders - boundary))

    def _share(self, part: Fraction) -> SeededShare:
        """Returns noise of an exact fraction `part` of the variance.

        Rounded variances would add up to totals that depend on the number of clients, by 1e-16.
        """
        return SHARES[self.kind](Fraction(self.variance) * part)

    def draw(self, keys: Keys, count: int) -> Integers:
        """Raises `ValueError`: the secure sum samples layers, not a client."""
        raise ValueError("a client draws no layers; the secure sum adds them")


@functools.lru_cache(maxsize=4096)
def _boundaries(clients: int, colluders: int, most: int, waste: float) -> tuple[int, ...]:
    """Returns the boundaries between layers, numbers of dropouts from 0 to `most`.

    Each is the largest at which the noise left is at most 1 + `waste` times the noise required.
    """
    boundaries = [0]
    while (before := boundaries[-1]) < most:
        tried = range(most, before, -1)
        boundaries.append(next(d for d in tried if _spends(clients, colluders, before, d, waste)))
    return tuple(boundaries)


def _spends(clients: int, colluders: int, before: int, until: int, waste: float) -> bool:
    """Whether one layer between two boundaries leaves at most 1 + `waste` times the noise required.

    Both sides of ((n - D) s_i - fewer l_i) / v <= (1 + waste) (n - D) / (n - k - D) are multiplied
    by (n - k - d_i) (n - k - d_{i-1}) (n - k - D), so that only integers are compared. The
    inequality always holds for `until` = `before` + 1.
    """
    counted, step = clients - colluders, until - before
    allowed = 1 + Fraction(waste)

    def within(gone: int) -> bool:
        survivors = clients - gone
        left = survivors * (counted - before) - _fewer(counted, before, until, gone) * step
        requested = survivors * (counted - before) * (counted - until)
        return left * (counted - gone) * allowed.denominator <= requested * allowed.numerator

    return all(map(within, range(until, before, -1)))


def _fewer(counted: int, before: int, until: int, gone: int) -> int:
    """Returns the number of survivors that keep one layer less after `gone` dropouts.

    `before` < `gone` <= `until` are neighbouring boundaries; `counted` is n - k.
    """
    return (until - gone) * (counted - before) // (until - before)
