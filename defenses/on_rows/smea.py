"""Smallest maximum eigenvalue averaging (SMEA): averages the subset of updates whose largest
variance in any direction is least.
"""

from __future__ import annotations

import math
from itertools import chain, combinations
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from defenses.geometry import Geometry
from defenses.weighing import WeightRule


class SmallestEigenvalue(WeightRule):
    """The mean of the n - f rows whose covariance has the least leading eigenvalue (SMEA).

    F(x) = mean of the x_k in S, where S minimises the leading eigenvalue of its covariance, over
    all S of n - f (ties are broken arbitrarily).

    Needs rows. Tolerates fewer than half Byzantine clients, if the number of subsets C(n, f) is at
    most `subsets` (6 of 20, 2 of 100). For larger numbers, use `defenses.on_rows.caf`, the same
    authors' filter of polynomial cost. kappa = (4 f / (n - f)) (1 + f / (n - 2 f))^2, which also
    holds with the variance in one direction. One Gram matrix and a search: the variance of a subset
    along any known direction is a lower bound on its leading eigenvalue. The subset with the least
    bound is decomposed, which yields a further direction, until its eigenvalue equals the bound.

    Source: Allouah, Guerraoui, Gupta, Pinot & Stephan 2023, "On the privacy-robustness-utility
    trilemma in distributed learning", section 5.

    >>> import torch
    >>> rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [9.0, 9.0]])
    >>> SmallestEigenvalue()(rows, byzantine=1)
    tensor([0.3333, 0.3333])
    """

    subsets: ClassVar[int] = 50_000

    def most(self, n: int) -> int:
        tolerated = range(super().most(n) + 1)
        return max(f for f in tolerated if math.comb(n, f) <= self.subsets)

    def kappa(self, n: int, byzantine: int) -> float:
        """Returns the published kappa, (4 f / (n - f)) (1 + f / (n - 2 f))^2.

        A smaller constant holds: two sets of n - f share n - 2 f rows, whose mean differs from that
        of either set by at most sqrt(f / (n - 2 f)) of its standard deviations, which gives 4 f /
        (n - 2 f).
        """
        return 4 * byzantine / (n - byzantine) * (1 + byzantine / (n - 2 * byzantine)) ** 2

    def mix(self, geometry: Geometry, byzantine: int) -> Tensor:
        least = _varying_least(geometry.gram[:-1, :-1], byzantine)
        weights = geometry.gram.new_zeros(geometry.rows)
        weights[least] = 1 / len(least)
        return weights


_BATCH_SIZE = 8
"""Number of subsets whose covariances are decomposed together."""
_ROUNDING = 1e-9
"""Relative difference below which eigenvalues count as equal."""


def _varying_least(gram: Tensor, remove: int) -> Tensor:
    """Returns the indices of the n - `remove` rows whose covariance has the least leading
    eigenvalue.

    `gram` `[n, n]` holds inner products about any point near most rows.
    """
    places = _subsets(len(gram), remove)
    inside = gram.new_zeros(len(places), len(gram)).scatter_(1, places, 1.0)
    inside /= places.shape[1]
    bounds, undecided = gram.new_zeros(len(places)), torch.ones(len(places), dtype=torch.bool)
    best, least, count = places[0], math.inf, min(_BATCH_SIZE, len(places))
    while bool(undecided.any()):
        lowest, tried = torch.where(undecided, bounds, math.inf).topk(count, largest=False)
        if not float(lowest[0]) < least * (1 - _ROUNDING):
            break
        largest, along = _leading(gram, places[tried])
        undecided[tried] = False
        if float(largest.min()) < least:
            best, least = places[tried[largest.argmin()]], float(largest.min())
        variances = inside @ along.square() - (inside @ along).square()
        bounds = torch.maximum(bounds, variances.max(dim=1).values)
    return best


def _subsets(n: int, remove: int) -> Tensor:
    """Returns every subset of n - remove of n indices, `[C(n, remove), n - remove]`."""
    size = n - remove
    flat = np.fromiter(chain.from_iterable(combinations(range(n), size)), dtype=np.int64)
    return torch.from_numpy(flat.reshape(-1, size))


def _leading(gram: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Returns each subset's leading eigenvalue `[k]`, and all rows' projections `[n, k]`.

    The projections are on the eigenvector of the subset's covariance, minus their median over rows.
    The subsets are `places` `[k, m]`.
    """
    blocks = gram[places[:, :, None], places[:, None, :]]
    blocks = blocks - blocks.mean(1, keepdim=True)
    blocks = blocks - blocks.mean(2, keepdim=True)
    values, vectors = torch.linalg.eigh(blocks)
    squared = values[:, -1].clamp(min=0.0)
    along = torch.einsum("nkm,km->nk", gram[:, places], vectors[:, :, -1])
    along = along * torch.where(squared > 0, squared.rsqrt(), 0.0)
    return squared / places.shape[1], along - along.median(dim=0).values
