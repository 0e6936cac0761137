"""Smallest maximum eigenvalue averaging: the mean of the rows that vary least in any direction."""

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
    """The mean of the n - f rows that vary least in the direction where they vary most (SMEA).

    F(x) = mean of the x_k in S, where S minimises the leading eigenvalue of its covariance, over
    all S of n - f (of several such S, one).

    Needs rows. Tolerates fewer than half hostile, and so few that the C(n, f) subsets are at most
    `subsets` (6 of 20, 2 of 100): for more, take `defenses.on_rows.caf`, the same authors' filter
    of polynomial cost. kappa = (4 f / (n - f)) (1 + f / (n - 2 f))^2, where the variance may even
    be that in one direction. One Gram matrix, and a search: a subset varies at least as much as
    along any direction at hand, so that the one for which this bound is least is decomposed, which
    gives a further direction, until its eigenvalue is the bound.

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
        """The published constant.

        A smaller one holds: two sets of n - f share n - 2 f rows, whose mean is no farther from
        that of either than sqrt(f / (n - 2 f)) of its deviations, which makes 4 f / (n - 2 f).
        """
        return 4 * byzantine / (n - byzantine) * (1 + byzantine / (n - 2 * byzantine)) ** 2

    def mix(self, geometry: Geometry, byzantine: int) -> Tensor:
        least = _varying_least(geometry.gram[:-1, :-1], byzantine)
        weights = geometry.gram.new_zeros(geometry.rows)
        weights[least] = 1 / len(least)
        return weights


_AT_ONCE = 8
"""Subsets that are decomposed together."""
_ROUNDING = 1e-9
"""What eigenvalues may differ by, relatively, and count as equal."""


def _varying_least(gram: Tensor, remove: int) -> Tensor:
    """Places `[n - remove]` of the rows whose covariance has the least leading eigenvalue.

    `gram` `[n, n]` are inner products about any point amid most rows.
    """
    places = _subsets(len(gram), remove)
    inside = gram.new_zeros(len(places), len(gram)).scatter_(1, places, 1.0)
    inside /= places.shape[1]
    bounds, undecided = gram.new_zeros(len(places)), torch.ones(len(places), dtype=torch.bool)
    best, least, count = places[0], math.inf, min(_AT_ONCE, len(places))
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
    """Every subset of n - remove of n places `[C(n, remove), n - remove]`."""
    size = n - remove
    flat = np.fromiter(chain.from_iterable(combinations(range(n), size)), dtype=np.int64)
    return torch.from_numpy(flat.reshape(-1, size))


def _leading(gram: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """For each of k subsets `[k, m]` its leading eigenvalue `[k]`, and all rows along it `[n, k]`.

    Rows are measured from their median, from which most of them are not far.
    """
    blocks = gram[places[:, :, None], places[:, None, :]]
    blocks = blocks - blocks.mean(1, keepdim=True)
    blocks = blocks - blocks.mean(2, keepdim=True)
    values, vectors = torch.linalg.eigh(blocks)
    squared = values[:, -1].clamp(min=0.0)
    along = torch.einsum("nkm,km->nk", gram[:, places], vectors[:, :, -1])
    along = along * torch.where(squared > 0, squared.rsqrt(), 0.0)
    return squared / places.shape[1], along - along.median(dim=0).values
