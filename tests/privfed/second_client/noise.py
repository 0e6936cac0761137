"""Noise in layers: their number, their variances, and the samples of a seed."""

import bisect
import functools
import itertools
import math
import secrets
from dataclasses import dataclass
from fractions import Fraction

from second_client.arithmetic import key_stream, numbers
from second_client.encoding import LABELS, sha256


def floor(product):
    """Returns the floor of a product of settings, with tolerance for its last bits."""
    return math.floor(product + 1e-9)


def ceil(product):
    return math.ceil(product - 1e-9)


@dataclass(frozen=True)
class Layers:
    """The configuration of noise in layers."""

    variance: float
    tolerance: float
    colluders: int = 0
    waste: float = 0.0
    kind: str = "skellam"

    def most_dropouts(self, n):
        return min(floor(self.tolerance * n), n - 1 - self.colluders)

    def boundaries(self, n):
        """Returns d_0 to d_L."""
        most, ends = self.most_dropouts(n), [0]
        while ends[-1] < most:
            tried = range(most, ends[-1], -1)
            ends.append(next(end for end in tried if self._spares(n, ends[-1], end)))
        return ends

    def _spares(self, n, start, end):
        """Whether a layer between two boundaries wastes no more than permitted, for any
        dropouts.
        """
        counted, within = n - self.colluders, []
        for gone in range(start + 1, end + 1):
            here = n - gone
            left = here * (counted - start) - self._fewer(n, start, end, gone) * (end - start)
            asked = here * (counted - start) * (counted - end) * (1 + self.waste)
            within.append(left * (counted - gone) <= asked)
        return all(within)

    def _fewer(self, n, start, end, gone):
        """Returns the number of survivors that keep one layer less."""
        return (end - gone) * (n - self.colluders - start) // (end - start)

    def count(self, n):
        return len(self.boundaries(n)) - 1

    def keeping(self, n, gone, survivors):
        """Returns the number of layers that each of `survivors` keeps."""
        ends, fewer = self.boundaries(n), 0
        stay = min(bisect.bisect_left(ends, gone), len(ends) - 1)
        if 0 < gone <= ends[-1]:
            fewer = self._fewer(n, ends[stay - 1], ends[stay], gone)
        return {who: stay - (place < fewer) for place, who in enumerate(sorted(survivors))}

    def variances(self, n):
        """Returns the variances of the base, and of layers 1 to L."""
        counted, ends = n - self.colluders, self.boundaries(n)
        pairs = itertools.pairwise(ends)
        parts = [Fraction(end - start, (counted - start) * (counted - end)) for start, end in pairs]
        return [Fraction(self.variance) * part for part in (Fraction(1, counted), *parts)]

    def seeds(self, n):
        """Returns the seeds of layers 1 to L; only the first is random."""
        seeds, seed = [], secrets.token_bytes(32)
        for _ in range(self.count(n)):
            seeds.append(seed)
            seed = next_layer(seed)
        return seeds

    def rows(self, n, seeds, length):
        """Returns the base, and a layer for each seed."""
        every = zip(self.variances(n), [secrets.token_bytes(32), *seeds], strict=True)
        return [draws(variance, seed, length, self.kind) for variance, seed in every]


def next_layer(seed):
    return sha256(LABELS["layer"], seed)


def draws(variance, seed, length, kind):
    reach, table = table_of(variance, kind)
    return [bisect.bisect_right(table, number) - reach for number in uniform(seed, range(length))]


def uniform(seed, places):
    """Yields the numbers below 2^192 at `places`."""
    leading, ties = (sha256(LABELS[name], seed) for name in ("layer draws", "layer ties"))
    first = numbers(key_stream(leading, 4 * (max(places) + 1)), 4)
    for place in places:
        yield (first[place] << 160) + int.from_bytes(key_stream(ties, 20, 2 * place), "little")


@functools.cache
def table_of(variance, kind):
    """Returns R, and F_j for j from -R to R."""
    reach = math.ceil(15 * math.sqrt(variance) + 100)
    most, weights = WEIGHTS[kind](reach, Fraction(variance))
    total, below, table = 2 * sum(weights.values()) - weights[0], 0, []
    for j in range(-most, reach + 1):
        below += weights[abs(j)]
        table.append((below << 192) // total)
    return reach, [*table[most - reach : -1], 1 << 192]


def skellam(reach, variance):
    """Returns K and the weights w_0 to w_{K+1}."""
    most = 2 * reach + 100
    weights = {most + 1: 0, most: 1 << 64}
    for k in range(most, 0, -1):
        step = 2 * k * weights[k] * variance.denominator // variance.numerator
        weights[k - 1] = weights[k + 1] + step
    return most, weights


def discrete_gaussian(reach, variance):
    weights, ratio = {0: 1 << 512}, exponential(1 / (2 * variance))
    square = exponential(1 / variance)
    for k in range(reach):
        weights[k + 1] = weights[k] * ratio >> 512
        ratio = ratio * square >> 512
    return reach, weights


def exponential(x):
    """Returns floor(2^512 exp(-x)), by the series to 700 bits."""
    total, term, k = 0, Fraction(1 << 700), 0
    while term := Fraction(math.floor(term)):
        total, k = total + (-1) ** k * int(term), k + 1
        term = term * x / k
    return total >> 188


WEIGHTS = {"skellam": skellam, "discrete_gaussian": discrete_gaussian}
