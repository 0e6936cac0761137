"""Numbers on a line in one group or two: exact 2-means, and whether there are two at all."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from defenses.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor


def upper_group(values: Tensor, references: int, generator: torch.Generator) -> Tensor:
    """Which of `values` `[m]` are in the higher of two groups `[m]` bool; none where one suffices.

    2-means is exact: on a line both groups are intervals. Whether there are two follows from gap
    statistics over so many uniform `references`.

    Source: Tibshirani, Walther & Hastie 2001, "Estimating the number of clusters in a data set via
    the gap statistic", section 3, with its reference (a).
    """
    ordered = values.double().sort().values
    if len(values) < 3 or not float(ordered[-1]) > float(ordered[0]):
        return torch.zeros_like(values, dtype=torch.bool)
    scaled = ((ordered - ordered[0]) / (ordered[-1] - ordered[0]))[None]
    uniform = torch.rand(references, len(values), generator=generator, dtype=torch.float64)
    drawn = uniform.sort(dim=1).values.to(scaled.device)
    if not _are_two(_dispersions(scaled)[:2], _dispersions(drawn)[:2]):
        return torch.zeros_like(values, dtype=torch.bool)
    *_, cut = _dispersions(scaled)
    return values.double() > ordered[int(cut[0])]


def _are_two(within: tuple[Tensor, ...], drawn: tuple[Tensor, ...]) -> bool:
    """Whether Gap(1) < Gap(2) - s_2, of dispersions in one group and two: the least k is not 1."""
    gaps = [torch.log(drawn[k]).mean() - torch.log(within[k][0]) for k in (0, 1)]
    spread = torch.log(drawn[1]).std(correction=0) * math.sqrt(1 + 1 / len(drawn[1]))
    return bool(gaps[0] < gaps[1] - spread)


def _dispersions(ordered: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of squares within one group and within the best two, and where the lower of these ends.

    Each `[b]`, of `ordered` `[b, m]`.
    """
    m = ordered.shape[1]
    sizes = torch.arange(1, m, dtype=ordered.dtype, device=ordered.device)
    sums, squares = ordered.cumsum(1), ordered.square().cumsum(1)
    low = squares[:, :-1] - sums[:, :-1].square() / sizes
    total, every = sums[:, -1:], squares[:, -1:]
    high = every - squares[:, :-1] - (total - sums[:, :-1]).square() / (m - sizes)
    within, cut = (low + high).clamp(min=0.0).min(dim=1)
    return (every - total.square() / m)[:, 0], within, cut
