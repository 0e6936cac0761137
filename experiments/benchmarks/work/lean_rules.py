"""Rules in a few lines of plain PyTorch and NumPy without checks, as timing references.

Each rule is constructed for f Byzantine rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

RADIUS = 100.0
"""A tenth of the norm of random rows of a million entries, so that each row is clipped."""
Rule = Callable[[Tensor], Tensor]


def mean(f: int) -> Rule:
    return lambda rows: rows.mean(dim=0)


def median(f: int) -> Rule:
    def middle(rows: Tensor) -> Tensor:
        return torch.from_numpy(np.median(rows.numpy(), axis=0))

    return middle


def trimmed_mean(f: int) -> Rule:
    def trimmed(rows: Tensor) -> Tensor:
        return torch.from_numpy(np.sort(rows.numpy(), axis=0)[f:-f].mean(axis=0))

    return trimmed


def norm_bound(f: int) -> Rule:
    def bounded(rows: Tensor) -> Tensor:
        weights: Tensor = (RADIUS / rows.norm(dim=1)).clamp(max=1.0) / len(rows)
        return weights @ rows

    return bounded


def clipping(f: int) -> Rule:
    center = torch.zeros(1)

    def clipped(rows: Tensor) -> Tensor:
        nonlocal center
        ways = torch.zeros_like(rows[0])
        for row in rows:
            away = row - center
            ways += away * min(1.0, RADIUS / float(away.norm()))
        center = center + ways / len(rows)
        return center

    return clipped


def geometric_median(f: int) -> Rule:
    def weiszfeld(rows: Tensor) -> Tensor:
        center = torch.zeros_like(rows[0])
        for _ in range(3):
            distances = torch.stack([(row - center).norm() for row in rows])
            weights = 1 / distances.clamp(min=0.1)
            center = (weights / weights.sum()) @ rows
        return center

    return weiszfeld


def _squared(rows: Tensor) -> Tensor:
    inner = rows @ rows.T
    norms = inner.diagonal()
    return norms[:, None] + norms[None, :] - 2 * inner


def _nearest(rows: Tensor, f: int, count: int) -> Tensor:
    sums = _squared(rows).sort(dim=1).values[:, 1 : len(rows) - f - 1].sum(dim=1)
    return sums.topk(count, largest=False).indices


def krum(f: int) -> Rule:
    return lambda rows: rows[_nearest(rows, f, 1)[0]]


def multi_krum(f: int) -> Rule:
    return lambda rows: rows[_nearest(rows, f, len(rows) - f)].mean(dim=0)


def mixing(f: int) -> Rule:
    def mixed(rows: Tensor) -> Tensor:
        nearest = _squared(rows).topk(len(rows) - f, largest=False).indices
        return torch.zeros(len(rows), len(rows)).scatter_(1, nearest, 1 / (len(rows) - f)) @ rows

    return mixed
