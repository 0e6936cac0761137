"""Minimum-diameter averaging (MDA): averages the n - f updates of least diameter."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from defenses.geometry import Geometry
from defenses.weighing import WeightRule


class MinimumDiameter(WeightRule):
    """The mean of the set of n - f updates with the smallest diameter (MDA).

    F(x) = mean of the x_k in S, where S minimises max |x_i - x_j| over i, j in S, over all S of n -
    f (ties are broken arbitrarily).

    Needs rows. Tolerates fewer than half Byzantine clients; no published kappa. One Gram matrix,
    O(n^2 d), and a search. S has a diameter of at most t if the f removed rows contain a row of
    each pair farther apart than t (a vertex cover of size f). So a bisection over the n (n - 1) / 2
    distances finds S. Finding a cover is exponential in f at worst, and fast if Byzantine rows are
    separated. After `search` branches in all the search stops; the diameter found is then
    guaranteed to be the least up to a factor of two.

    Source: El Mhamdi, Guerraoui, Guirguis, Hoang & Rouault 2020, "Genuinely distributed byzantine
    machine learning" (after Rousseeuw 1985).

    >>> import torch
    >>> rows = torch.tensor([[0.0], [1.0], [2.0], [2.5], [-40.0], [50.0]])
    >>> MinimumDiameter()(rows, byzantine=2)
    tensor([1.3750])
    """

    search: ClassVar[int] = 20_000

    def mix(self, geometry: Geometry, byzantine: int) -> Tensor:
        distances = geometry.distances()
        closest = closest_together(distances.numpy(), byzantine, self.search)
        weights = distances.new_zeros(geometry.rows)
        weights[torch.from_numpy(closest)] = 1 / len(closest)
        return weights


def closest_together(
    distances: NDArray[np.float64], remove: int, search: int = MinimumDiameter.search
) -> NDArray[np.int64]:
    """Returns the indices of the set of n - `remove` rows with the least diameter.

    `distances` are `[n, n]`. If the search needs more than `search` branches, the diameter is only
    guaranteed to be at most twice the least.
    """
    n = len(distances)
    near = np.sort(distances, axis=1)[:, n - remove - 1]  # a ball that holds n - remove rows
    best = np.argsort(distances[near.argmin()], kind="stable")[: n - remove]
    values = np.unique(distances[np.triu_indices(n, 1)]) if n > 1 else np.zeros(1)
    budget = [search]
    low, high = 0, int(np.searchsorted(values, distances[np.ix_(best, best)].max()))
    while low < high:
        middle = (low + high) // 2
        cover = _cover(distances > values[middle], remove, budget)
        if cover is None:
            low = middle + 1
        else:
            high = middle
            left = np.setdiff1d(np.arange(n), cover)
            best = left[: n - remove]
    return np.sort(best)


def _cover(far: NDArray[np.bool_], size: int, budget: list[int]) -> list[int] | None:
    """Returns at most `size` rows whose removal leaves no pair in the mask `far` `[n, n]`.

    Branches on the row in most pairs: either it is removed, or all rows far from it are. `budget`
    holds the number of branches left, and is reduced in place.

    Returns None if there are no such rows, or if the budget is exhausted.
    """
    degrees = far.sum(axis=1)
    worst = int(degrees.argmax())
    degree = int(degrees[worst])
    if degree == 0:
        return []
    # each of `size` rows breaks up at most degree pairs; every pair is counted twice
    if budget[0] <= 0 or int(degrees.sum()) > 2 * size * degree:
        return None
    budget[0] -= 1
    for removed in ([worst], np.flatnonzero(far[worst]).tolist()):
        if len(removed) > size:
            continue
        rest = far.copy()
        rest[removed, :] = False
        rest[:, removed] = False
        cover = _cover(rest, size - len(removed), budget)
        if cover is not None:
            return removed + cover
    return None
