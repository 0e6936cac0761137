"""Gaussian noise that pairs of clients partly share; shared parts cancel in the sum."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privfed.core.streams import Keys
from privfed.privacy.noise.gaussian_on_grid import grid_of, rounded_normal

_FINEST = 2.0**12
"""Least number of grid steps in the smaller of the two standard deviations."""
_MOST_CLIENTS = 1_000_000


@dataclass(frozen=True)
class PairwiseNoise:
    """Noise of `clients`, with standard deviation `alone` per client and `shared` per pair.

    With a = alone and b = shared, client k adds N_k = a u_k + b (sum over j != k of s_kj v_kj) to
    each number of its row, all u_k and v_kj = v_jk being independent standard normal, and s_kj =
    -s_jk a sign. Over all n clients the covariance of N is a^2 I + b^2 (n I - J), J being all ones:
    that of independent noise, plus the Laplacian of the complete graph.
    """

    clients: int
    alone: float
    shared: float

    @property
    def of_row(self) -> float:
        """Standard deviation of one client's noise."""
        return math.hypot(self.alone, self.shared * math.sqrt(self.clients - 1))

    def of_sum(self, rows: int) -> float:
        """Returns the noise standard deviation on a sum of `rows` rows; pairs within it cancel."""
        apart = rows * max(self.clients - rows, 0)
        return math.hypot(self.alone * math.sqrt(rows), self.shared * math.sqrt(apart))

    @property
    def centred(self) -> float:
        """Std of clients' independent noise W; W - mean(W) is distributed as the shared noise."""
        return self.shared * math.sqrt(self.clients)

    @property
    def grid(self) -> float | None:
        """Public grid of rows and noise: a power of two; None without noise."""
        return grid_of(max(self.alone, self.centred))

    @property
    def exact(self) -> bool:
        """Whether the proof of `draw` applies; true without noise.

        The proof applies if `alone` (and `centred`, if noise is shared) have enough grid steps, and
        there are at most a million clients.
        """
        grid = self.grid
        if grid is None:
            return True
        smallest = min(self.alone, self.centred) if self.shared else self.alone
        return self.clients <= _MOST_CLIENTS and smallest >= _FINEST * grid

    def draw(self, keys: Keys, length: int) -> NDArray[np.float64]:
        """Returns the noise `[m, length]` of m clients, named by `keys`, in multiples of `grid`.

        Without noise it is zero.

        The other n - m clients of the cohort dropped out; the noise that the m clients share with
        them remains in the result.

        Pairs are not sampled individually, which would take n^2 numbers: with independent W_k of
        standard deviation b sqrt(n), W - mean(W) has the covariance b^2 (n I - J). The numbers a
        u_k and W_k are sampled, each rounded to the grid (W_k to w_k). N_k is their sum, minus the
        mean of w rounded to the grid.

        *The result is post-processing of N* up to a total variation distance below e^-(10^6). Let e
        be uniform on a cell of the grid, independent of all. (1) Given the sum s of w, the w_k are
        on a lattice of rank n - 1, with weights given by the density of W + e there. The continuous
        a u is added to them, which smooths: by Poisson summation the result is distributed as if W
        + e, given that its sum is s, replaced w, up to the sum of exp(-2 pi^2 r^2 |y|^2) over the
        lattice's dual. The shortest vector of the dual is at least 1 / (grid sqrt 2) long, and r,
        of 1 / r^2 = 1 / a^2 + 1 / (b^2 n), at least 2^11 steps of the grid. (2) Given s and e,
        W = (s - sum of e) / n + (W - mean of W), and the last part is independent of both, as the
        residuals of a Gaussian sample are of its mean. So x + N as drawn is x + a u + (W - mean of
        W) plus a vector that is independent of these, all rounded: x, w and its rounded mean are on
        the grid, so that rounding a u is rounding the sum.

        Raises `ValueError` if `keys` name more clients than there are.
        """
        named = 0 if keys.clients is None else len(keys.clients)
        if named > self.clients:
            raise ValueError(f"{named} clients send rows, but {self.clients} clients share noise")
        grid = self.grid
        if grid is None:
            return np.zeros((named, length))
        steps = np.stack([_steps(each, self.alone / grid, length) for each in keys.each()])
        if not self.shared:
            return grid * steps
        total = np.zeros(length, dtype=np.int64)
        for place, each in enumerate(self._everybody(keys)):
            common = _steps(each.derived(b"shared"), self.centred / grid, length)
            total += common.astype(np.int64)
            if place < named:
                steps[place] += common
        mean = (2 * total + self.clients) // (2 * self.clients)
        return np.asarray(grid * (steps - mean))

    def _everybody(self, keys: Keys) -> Iterator[Keys]:
        """Yields the keys of each client named by `keys`, then of the other clients."""
        named = 0 if keys.clients is None else len(keys.clients)
        yield from keys.each()
        for place in range(self.clients - named):
            yield keys.derived(b"absent %d" % place)


def _steps(keys: Keys, scale: float, length: int) -> NDArray[np.float64]:
    """Returns normal numbers `[length]` of standard deviation `scale`, rounded to integers."""
    return rounded_normal(keys.bits(length), math.nextafter(scale, math.inf), keys.further)


def alone_for_ratio(ratio: float, honest: int) -> float:
    """Returns the `alone` that protects a row as well as independent noise of standard deviation 1.

    The standard deviation `shared` is `ratio` * `alone`, and h = `honest` clients are honest. An
    adversary that knows all pairs except those of h honest clients sees their rows under the
    covariance a^2 I + b^2 (h I - J), a = alone and b = shared, whose eigenvalue along (1, ..., 1)
    is a^2, and orthogonal to it a^2 + h b^2. A change of one row by D has the squared Mahalanobis
    norm |D|^2 (1 / h / a^2 + (1 - 1 / h) / (a^2 + h b^2)), which is |D|^2 here.

    >>> round(alone_for_ratio(0.0, 100), 3), round(alone_for_ratio(1.0, 100), 3)
    (1.0, 0.141)
    """
    h = honest
    return math.sqrt(1 / h + (1 - 1 / h) / (1 + h * ratio**2))
