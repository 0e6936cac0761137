"""Gaussian noise of which each pair of clients shares a part, that cancels in the sum of both."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privfed.privacy.noise.gaussian_on_grid import grid_of, rounded_normal
from privfed.streams import Keys

_FINEST = 2.0**12
"""Steps of the grid in the smaller deviation, at least."""
_MOST_CLIENTS = 1_000_000


@dataclass(frozen=True)
class PairwiseNoise:
    """The noise of `clients`: each adds a deviation `own`, and with each other one `pair`.

    Client k adds N_k = own u_k + pair (sum over j != k of s_kj v_kj) to each number of its row, all
    u_k and v_kj = v_jk being independent standard normal, and s_kj = -s_jk a sign. Over all clients
    the covariance of N is own^2 I + pair^2 (n I - J), J being all ones: that of independent noise,
    and of the Laplacian of the complete graph.
    """

    clients: int
    own: float
    pair: float

    @property
    def of_row(self) -> float:
        """The deviation of one client's noise."""
        return math.hypot(self.own, self.pair * math.sqrt(self.clients - 1))

    def of_sum(self, rows: int) -> float:
        """The deviation of the noise of so many clients' sum: of all, nothing shared is left."""
        apart = rows * max(self.clients - rows, 0)
        return math.hypot(self.own * math.sqrt(rows), self.pair * math.sqrt(apart))

    @property
    def centred(self) -> float:
        """The deviation of independent noise that, less its mean, is distributed as that shared."""
        return self.pair * math.sqrt(self.clients)

    @property
    def grid(self) -> float | None:
        """The public grid of rows and noise: a power of two; None where there is no noise."""
        return grid_of(max(self.own, self.centred))

    @property
    def exact(self) -> bool:
        """Whether the grid is fine enough beside both deviations for `draw` to be right."""
        grid = self.grid
        if grid is None:
            return True
        smallest = min(self.own, self.centred) if self.pair else self.own
        return self.clients <= _MOST_CLIENTS and smallest >= _FINEST * grid

    def draw(self, keys: Keys, length: int) -> NDArray[np.float64]:
        """The noise `[m, length]` of the m clients that `keys` name, in whole steps of the grid.

        Those of the n clients who are not named share noise with these as well: they are in the
        cohort, and sent nothing, so that what they share stays.

        No pair is drawn by itself, which would take n^2 numbers: with independent w_k of deviation
        pair sqrt(n), w - mean(w) has the covariance pair^2 (n I - J). Drawn are a_k = own u_k and
        w_k, rounded to the grid, and N_k = a_k + w_k - c, c being their sum's mean rounded to the
        grid.

        *That is post-processing of N* but for a total variation below e^-(10^6). Let W be w before
        rounding, and e uniform on a cell of the grid, independent of all. (1) Given the sum s of
        the rounded w, these are on a lattice of rank n - 1, with the weights that the density of
        W + e has there. Adding the continuous own u smooths it: by Poisson summation the result is
        that of W + e, given that its sum is s, but for a sum of exp(-2 pi^2 t^2 |y|^2) over the
        lattice's dual, whose shortest vector is 1 / (grid sqrt 2) or longer, with
        1 / t^2 = 1 / own^2 + 1 / w's variance, so that grid / t is at most 2^-11. (2) Given s and
        e, W = (s - sum of e) / n + (W - mean of W), the last part being independent of both, as a
        Gaussian's deviations are of its mean. So x + N as drawn is x + own u + (W - mean of W) plus
        a vector that is independent of x, u and W - mean of W; and own u is rounded only together
        with x and the rest, which lie on the grid.

        Raises `ValueError` for more clients than there are.
        """
        named = 0 if keys.clients is None else len(keys.clients)
        if named > self.clients:
            raise ValueError(f"{named} clients send rows, and noise is shared by {self.clients}")
        grid = self.grid
        if grid is None:
            return np.zeros((named, length))
        steps = np.stack([_steps(each, self.own / grid, length) for each in keys.each()])
        if not self.pair:
            return grid * steps
        total = np.zeros(length, dtype=np.int64)
        for place, each in enumerate(self._everybody(keys)):
            shared = _steps(each.derived(b"shared"), self.centred / grid, length)
            total += shared.astype(np.int64)
            if place < named:
                steps[place] += shared
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


def own_part(ratio: float, honest: int) -> float:
    """The `own` deviation with `pair` = ratio own that protects one of so many honest clients as
    independent noise of deviation 1 on its row alone would.

    Whoever knows all pairs but those of `honest` clients sees their rows under the covariance
    own^2 I + pair^2 (h I - J), whose eigenvalue along (1, ..., 1) is own^2, and across it
    own^2 + h pair^2. One row's change by D has the squared Mahalanobis norm
    |D|^2 (1 / h / own^2 + (1 - 1 / h) / (own^2 + h pair^2)), which is |D|^2 here.

    >>> own_part(0.0, 100), round(own_part(1.0, 100), 3), round(own_part(100.0, 100), 3)
    (1.0, 0.141, 0.1)
    """
    h = honest
    return math.sqrt(1 / h + (1 - 1 / h) / (1 + h * ratio**2))
