"""Layer-adaptive sparsified aggregation: in each layer, who stands out there is left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from defenses.types import RowRule
from defenses.weighing import admitted

_ROUNDING = 1e-6
"""Norms that differ by less, relatively, are equal: of rows that are cut to one length."""


class LayerAdaptive(RowRule):
    """The mean, layer by layer, of sparsified updates that are unremarkable in that layer (LASA).

    Each update is cut to the median of the norms, and the part `sparsity` of its numbers with the
    least magnitude is set to zero: y_k. In layer l, a_k = |y_k^l| is its magnitude, and

    b_k = (1 + sum of sign(y_k^l) / sum of |sign(y_k^l)|) / 2

    the part of its nonzero numbers that are positive (1/2 of a row without any). F(x)^l is the mean
    of the y_k^l with |a_k - median(a)| < `magnitude_radius` deviation(a) and |b_k - median(b)| <
    `direction_radius` deviation(b), or of all where there is none. Where all agree, nobody
    is left out.

    Needs rows, and where layers (a model's parameters, one tensor each) begin and end. Tolerates
    fewer than half hostile, none of which counts as longer than the median; its authors prove a
    robustness up to constants, so no kappa here. O(nd), and in memory one layer.

    Source: Xu, Zhang & Hu 2025, "Achieving Byzantine-resilient federated learning via
    layer-adaptive sparsified model aggregation", algorithm 1; the cut, and 1 for both radii and 0.3
    for the sparsity, are those of its authors' experiments.

    >>> import torch
    >>> rows = torch.tensor([[3.0, 4.0, 0.0], [4.0, 3.0, 0.0], [-9.0, 4.0, 7.0]])
    >>> LayerAdaptive()(rows, byzantine=1, layers=torch.tensor([2, 1]))
    tensor([3.5000, 3.5000, 0.0000])
    """

    bounded: ClassVar[bool] = False

    sparsity: float = Field(0.3, ge=0, lt=1)
    """The part of each update's numbers that is set to zero, those of least magnitude."""
    magnitude_radius: float = Field(1.0, gt=0)
    """How many deviations a layer's norm may lie from the median of all."""
    direction_radius: float = Field(1.0, gt=0)
    """How many deviations a layer's part of positive numbers may lie from the median of all."""

    def needs(self) -> frozenset[str]:
        return frozenset({"layers"})

    def __call__(self, rows: Tensor, byzantine: int, *, layers: Tensor) -> Tensor:  # type: ignore[override]
        among = admitted(rows, byzantine, (), self)
        if int(layers.sum()) != rows.shape[1]:
            raise ValueError(f"layers have {int(layers.sum())} numbers, and rows {rows.shape[1]}")
        if not among.count:
            return among.nothing()
        rows = among.rows if among.keep is None else among.rows[among.keep]
        scale, least = _to_median_norm(rows), _least_magnitudes(rows, self.sparsity)
        aggregate = rows.new_empty(rows.shape[1])
        for layer in _spans(layers):
            part = rows[:, layer] * (rows[:, layer].abs() >= least) * scale
            aggregate[layer] = part[self._unremarkable(part)].mean(dim=0)
        return aggregate

    def _unremarkable(self, part: Tensor) -> Tensor:
        """Which of the rows of a layer `[n, c]` are near the medians of all: `[n]` bool."""
        magnitudes = torch.linalg.vector_norm(part, dim=1, dtype=torch.float64)
        balances = part.sign().sum(1).double() / part.count_nonzero(dim=1).clamp(min=1)
        near = _near_median(magnitudes, self.magnitude_radius)
        near &= _near_median((1 + balances) / 2, self.direction_radius)
        return near if bool(near.any()) else torch.ones_like(near)


def _near_median(values: Tensor, radius: float) -> Tensor:
    """Which of `values` `[n]` are within `radius` deviations of their median: `[n]` bool."""
    median, deviation = values.quantile(0.5), values.std(correction=0)
    away = (values - median).abs()
    beyond = radius * deviation * (1 - _ROUNDING)  # who lies just there is not within, in any order
    return (away < beyond) | (away <= _ROUNDING * median.abs())


def _to_median_norm(rows: Tensor) -> Tensor:
    """What `rows` `[n, d]` are multiplied by, so that none is longer than the median: `[n, 1]`."""
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True).double()
    longest = norms.quantile(0.5)
    return torch.where(norms > longest, longest / norms, 1.0).to(rows.dtype)


def _least_magnitudes(rows: Tensor, sparsity: float) -> Tensor:
    """The least magnitude that each of `rows` `[n, d]` keeps: `[n, 1]`."""
    dropped = int(sparsity * rows.shape[1])
    least = [np.partition(row.abs().cpu().numpy(), dropped)[dropped] for row in rows]
    return torch.tensor(np.array(least), device=rows.device)[:, None]


def _spans(layers: Tensor) -> Iterator[slice]:
    """Where each of `layers` (sizes `[l]`) lies in a row."""
    start = 0
    for size in layers.tolist():
        yield slice(start, start + size)
        start += size
