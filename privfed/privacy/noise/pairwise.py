"""Gaussian noise of which each pair of clients shares a part, that cancels in the sum of both."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privfed.core.streams import Keys
from privfed.privacy.noise.gaussian_on_grid import grid_of, rounded_normal

_FINEST = 2.0**12
"""Steps of the grid in the smaller deviation, at least."""
_MOST_CLIENTS = 1_000_000


@dataclass(frozen=True)
class PairwiseNoise:
    """The noise of `clients`: each adds a deviation `alone`, and with each other one `shared`.

    With a = alone and b = shared, client k adds N_k = a u_k + b (sum over j != k of s_kj v_kj) to
    each number of its row, all u_k and v_kj = v_jk being independent standard normal, and
    s_kj = -s_jk a sign. Over all n clients the covariance of N is a^2 I + b^2 (n I - J), J being
    all ones: that of independent noise, and of the Laplacian of the complete graph.
    """

    clients: int
    alone: float
    shared: float

    @property
    def of_row(self) -> float:
        """The deviation of one client's noise."""
        return math.hypot(self.alone, self.shared * math.sqrt(self.clients - 1))

    def of_sum(self, rows: int) -> float:
        """The deviation of the noise of so many clients' sum: of all, nothing shared is left."""
        apart = rows * max(self.clients - rows, 0)
        return math.hypot(self.alone * math.sqrt(rows), self.shared * math.sqrt(apart))

    @property
    def centred(self) -> float:
        """The deviation of independent noise that, less its mean, is distributed as that shared."""
        return self.shared * math.sqrt(self.clients)

    @property
    def grid(self) -> float | None:
        """The public grid of rows and noise: a power of two; None where there is no noise."""
        return grid_of(max(self.alone, self.centred))

    @property
    def exact(self) -> bool:
        """Whether the grid is fine enough beside both deviations for `draw` to be right."""
        grid = self.grid
        if grid is None:
            return True
        smallest = min(self.alone, self.centred) if self.shared else self.alone
        return self.clients <= _MOST_CLIENTS and smallest >= _FINEST * grid

    def draw(self, keys: Keys, length: int) -> NDArray[np.float64]:
        """The noise `[m, length]` of the m clients that `keys` name, in whole steps of the grid.

        Those of the n clients who are not named share noise with these as well: they are in the
        cohort, and sent nothing, so that what they share stays.

        No pair is drawn by itself, which would take n^2 numbers: with independent W_k of deviation
        b sqrt(n), W - mean(W) has the covariance b^2 (n I - J). Drawn are a u_k and W_k, each
        rounded to the grid (w_k), and N_k is their sum, less the mean of w rounded to the grid.

        *That is post-processing of N* but for a total variation below e^-(10^6). Let e be uniform
        on a cell of the grid, independent of all. (1) Given the sum s of w, these are on a lattice
        of rank n - 1, with weights as the density of W + e is there. To them the continuous a u is
        added, which smooths: by Poisson summation the result is as of W + e, given that its sum is
        s, but for the sum of exp(-2 pi^2 r^2 |y|^2) over the lattice's dual. Its shortest vector
        is at least 1 / (grid sqrt 2) long, and r, of 1 / r^2 = 1 / a^2 + 1 / (b^2 n), at least 2^11
        steps of the grid. (2) Given s and e, W = (s - sum of e) / n + (W - mean of W), and the last
        part is independent of both, as a Gaussian's deviations are of its mean. So x + N as drawn
        is x + a u + (W - mean of W) plus a vector that is independent of these, all rounded: x, w
        and its rounded mean lie on the grid, so that to round a u is to round the sum.

        Raises `ValueError` for more clients than there are.
        """
        named = 0 if keys.clients is None else len(keys.clients)
        if named > self.clients:
            raise ValueError(f"{named} clients send rows, and noise is shared by {self.clients}")
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
        """The keys of each client that `keys` name, then of those whom they do not."""
        named = 0 if keys.clients is None else len(keys.clients)
        yield from keys.each()
        for place in range(self.clients - named):
            yield keys.derived(b"absent %d" % place)


def _steps(keys: Keys, scale: float, length: int) -> NDArray[np.float64]:
    """Normal numbers `[length]` of the deviation `scale`, rounded to whole ones."""
    return rounded_normal(keys.bits(length), math.nextafter(scale, math.inf), keys.further)


def part_alone(ratio: float, honest: int) -> float:
    """The deviation `alone`, with `shared` = ratio `alone`, that protects one of so many `honest`
    clients as independent noise of deviation 1 on its row would.

    Whoever knows all pairs but those of h honest clients sees their rows under the covariance
    a^2 I + b^2 (h I - J), a = alone and b = shared, whose eigenvalue along (1, ..., 1) is a^2, and
    across it a^2 + h b^2. One row's change by D has the squared Mahalanobis norm
    |D|^2 (1 / h / a^2 + (1 - 1 / h) / (a^2 + h b^2)), which is |D|^2 here.

    >>> round(part_alone(0.0, 100), 3), round(part_alone(1.0, 100), 3)
    (1.0, 0.141)
    """
    h = honest
    return math.sqrt(1 / h + (1 - 1 / h) / (1 + h * ratio**2))
