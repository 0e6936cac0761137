"""How each row of a round stands to the aggregate and to the other rows; for simulations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from defenses.finite import usable
from defenses.geometry import Geometry

MEASURES = ("far", "against", "alike")
"""By what rows stand out; see `standings`."""


def standings(rows: Tensor, aggregate: Tensor) -> dict[str, Tensor]:
    """How many of `rows` `[n, m]` stand out as much as each does, or more: `[n]`, by measure.

    A row counts itself. The measures are "far", the distance from `aggregate` `[m]`, which is large
    for attackers who push it; "against", the angle with it, for those who work against it; and
    "alike", how near the nearest other row is, for those who push together. Rows that are not
    finite are farthest, and stand out least by the other two. No copy of the rows is made.
    """
    good = usable(rows)
    places = good.nonzero().squeeze(1)
    far = torch.full((len(rows),), math.inf, dtype=torch.float64, device=rows.device)
    against, alike = -far, -far
    apart = [torch.linalg.vector_norm(rows[k] - aggregate, dtype=torch.float64) for k in places]
    if apart:
        far[places] = torch.stack(apart)
        against[places] = -_cosines(rows, aggregate)[places]
    if len(places) > 1:
        squared = Geometry.of(rows, None if len(places) == len(rows) else places).distances()
        alike[places] = -squared.fill_diagonal_(math.inf).min(dim=1).values
    measures = zip(MEASURES, (far, against, alike), strict=True)
    return {name: _at_least(values) for name, values in measures}


def _cosines(rows: Tensor, aggregate: Tensor) -> Tensor:
    """The cosine `[n]` of each row's angle with the aggregate; 0 without a direction."""
    lengths = torch.linalg.vector_norm(rows, dim=1) * torch.linalg.vector_norm(aggregate)
    return torch.where(lengths > 0, rows @ aggregate / lengths, 0.0).double()


def _at_least(values: Tensor) -> Tensor:
    """How many of `values` `[n]` are as large as each: `[n]`."""
    return len(values) - torch.searchsorted(values.sort().values, values, side="left")
