"""Layer-adaptive sparsified aggregation (LASA): excludes outlying updates in each layer."""

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
"""Relative difference below which norms count as equal: rows clipped to one norm differ by
rounding."""


class LayerAdaptive(RowRule):
    """The layer-wise mean of sparsified updates that are not outliers in that layer (LASA).

    Each update is clipped to the median of the norms, and the fraction `sparsity` of its entries
    with the least magnitude is set to zero: y_k. In layer l, a_k = |y_k^l| is its magnitude, and

    b_k = (1 + sum of sign(y_k^l) / sum of |sign(y_k^l)|) / 2

    is the fraction of its nonzero entries that are positive (1/2 for a row without any). F(x)^l is
    the mean of the y_k^l with |a_k - median(a)| < `magnitude_radius` std(a) and |b_k - median(b)| <
    `direction_radius` std(b), or of all y_k^l if no row satisfies this. If all values agree, no
    client is excluded.

    Needs rows, and the sizes of layers (a model's parameters, one tensor each). Tolerates fewer
    than half Byzantine clients, each clipped to the median norm. The authors prove robustness up to
    constants, so no kappa is given here. O(nd), with memory for one layer.

    Source: Xu, Zhang & Hu 2025, "Achieving Byzantine-resilient federated learning via
    layer-adaptive sparsified model aggregation", algorithm 1; the clipping, radii of 1 and a
    sparsity of 0.3 are those of the authors' experiments.

    >>> import torch
    >>> rows = torch.tensor([[3.0, 4.0, 0.0], [4.0, 3.0, 0.0], [-9.0, 4.0, 7.0]])
    >>> LayerAdaptive()(rows, byzantine=1, layers=torch.tensor([2, 1]))
    tensor([3.5000, 3.5000, 0.0000])
    """

    bounded: ClassVar[bool] = False

    sparsity: float = Field(0.3, ge=0, lt=1)
    """Fraction of each update's entries set to zero, those of least magnitude."""
    magnitude_radius: float = Field(1.0, gt=0)
    """Threshold, in standard deviations, on the distance of a
    layer's norm from the cohort median."""
    direction_radius: float = Field(1.0, gt=0)
    """Threshold, in standard deviations, on a layer's fraction of
    positive entries relative to the cohort median."""

    def needs(self) -> frozenset[str]:
        return frozenset({"layers"})

    def __call__(self, rows: Tensor, byzantine: int, *, layers: Tensor) -> Tensor:  # type: ignore[override]
        among = admitted(rows, byzantine, (), self)
        if int(layers.sum()) != rows.shape[1]:
            raise ValueError(
                f"layers have {int(layers.sum())} numbers, but rows have {rows.shape[1]}; "
                "expected equally many"
            )
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
        """Returns a mask `[n]` bool of the rows of a layer `[n, c]` whose magnitude and direction
        are near the medians.
        """
        magnitudes = torch.linalg.vector_norm(part, dim=1, dtype=torch.float64)
        balances = part.sign().sum(1).double() / part.count_nonzero(dim=1).clamp(min=1)
        near = _near_median(magnitudes, self.magnitude_radius)
        near &= _near_median((1 + balances) / 2, self.direction_radius)
        return near if bool(near.any()) else torch.ones_like(near)


def _near_median(values: Tensor, radius: float) -> Tensor:
    """Returns a mask of `values` `[n]` less than `radius` standard deviations from their median, or
    equal to it up to rounding.
    """
    median, std = values.quantile(0.5), values.std(correction=0)
    away = (values - median).abs()
    beyond = radius * std * (1 - _ROUNDING)  # strict, for any order of summation
    return (away < beyond) | (away <= _ROUNDING * median.abs())


def _to_median_norm(rows: Tensor) -> Tensor:
    """Returns factors `[n, 1]` that clip `rows` `[n, d]` to the median of their norms."""
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True).double()
    longest = norms.quantile(0.5)
    return torch.where(norms > longest, longest / norms, 1.0).to(rows.dtype)


def _least_magnitudes(rows: Tensor, sparsity: float) -> Tensor:
    """Returns, for each of `rows` `[n, d]`, the smallest magnitude that sparsification keeps, `[n,
    1]`.
    """
    dropped = int(sparsity * rows.shape[1])
    least = [np.partition(row.abs().cpu().numpy(), dropped)[dropped] for row in rows]
    return torch.tensor(np.array(least), device=rows.device)[:, None]


def _spans(layers: Tensor) -> Iterator[slice]:
    """Yields the slice of a row that each of `layers` (sizes `[l]`) occupies."""
    start = 0
    for size in layers.tolist():
        yield slice(start, start + size)
        start += size
