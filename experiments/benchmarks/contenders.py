"""Who aggregates: rules that both libraries have, and the leanest plain PyTorch that comes to mind.

A rule that both have is one entry of `RULES`; where ByzFL searches all subsets, `most_rows` says up
to how many rows that ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from defenses.before.bucketing import Bucketing
from defenses.before.nnm import NearestNeighbourMixing
from defenses.by_sums.centered_clipping import CenteredClipping
from defenses.by_sums.geometric_median import GeometricMedian
from defenses.by_sums.mean import Mean
from defenses.by_sums.norm_bound import NormBound
from defenses.on_rows.krum import Krum, MultiKrum
from defenses.on_rows.mda import MinimumDiameter
from defenses.on_rows.mean_around_median import MeanAroundMedian
from defenses.on_rows.median import Median
from defenses.on_rows.trimmed_mean import TrimmedMean
from defenses.weighing import PreAggregator, mixtures
from experiments.peers import byzfl

RADIUS = 100.0
"""A tenth of what random rows of a million numbers measure: each of them is clipped."""
Rule = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Contenders:
    """How to make the same rule, against f hostile rows, three times over."""

    ours: Callable[[int], Rule]
    theirs: Callable[[int], Rule]
    lean: Callable[[int], Rule] | None = None
    most_rows: int = 1000
    writes: bool = False
    """Whether theirs writes into the rows that it is given."""


def _before(part: PreAggregator) -> Callable[[int], Rule]:
    def made(f: int) -> Rule:
        generator = torch.Generator().manual_seed(0) if part.needs() else None
        return lambda rows: mixtures(rows, f, (part,), generator)

    return made


def _aggregators() -> Any:
    return byzfl("aggregators")


def _preaggregators() -> Any:
    return byzfl("preaggregators")


def _clipped_mean(f: int) -> Rule:
    clip, average = _preaggregators().Clipping(RADIUS), _aggregators().Average()
    return lambda rows: average(clip(rows))  # type: ignore[no-any-return]


def _clipping(f: int) -> Rule:
    """Centered clipping that goes on from its last center, as theirs does."""
    rule, centers = CenteredClipping(radius=RADIUS), dict[str, Tensor]()

    def clipped(rows: Tensor) -> Tensor:
        centers["last"] = rule.on_rows(rows, centers.get("last"))
        return centers["last"]

    return clipped


def _lean_median(f: int) -> Rule:
    return lambda rows: torch.from_numpy(np.median(rows.numpy(), axis=0))


def _lean_trimmed_mean(f: int) -> Rule:
    return lambda rows: torch.from_numpy(np.sort(rows.numpy(), axis=0)[f:-f].mean(axis=0))


def _lean_norm_bound(f: int) -> Rule:
    def bounded(rows: Tensor) -> Tensor:
        return (RADIUS / rows.norm(dim=1)).clamp(max=1.0) @ rows / len(rows)

    return bounded


def _lean_clipping(f: int) -> Rule:
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


def _lean_geometric_median(f: int) -> Rule:
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


def _lean_krum(f: int, multi: bool = False) -> Rule:
    def krum(rows: Tensor) -> Tensor:
        nearest = _squared(rows).sort(dim=1).values[:, 1 : len(rows) - f - 1].sum(dim=1)
        count = len(rows) - f if multi else 1
        return rows[nearest.topk(count, largest=False).indices].mean(dim=0)

    return krum


def _lean_mixing(f: int) -> Rule:
    def mixed(rows: Tensor) -> Tensor:
        nearest = _squared(rows).topk(len(rows) - f, largest=False).indices
        return torch.zeros(len(rows), len(rows)).scatter_(1, nearest, 1 / (len(rows) - f)) @ rows

    return mixed


RULES: dict[str, Contenders] = {
    "mean": Contenders(
        lambda f: lambda x: Mean()(x, 0),
        lambda f: _aggregators().Average(),
        lambda f: lambda x: torch.mean(x, dim=0),
    ),
    "norm bound": Contenders(
        lambda f: NormBound(radius=RADIUS).on_rows, _clipped_mean, _lean_norm_bound, writes=True
    ),
    "centered clipping": Contenders(
        _clipping,
        lambda f: _aggregators().CenteredClipping(tau=RADIUS),
        _lean_clipping,
    ),
    "geometric median": Contenders(
        lambda f: lambda x: GeometricMedian()(x, f),
        lambda f: _aggregators().GeometricMedian(nu=0.1, T=3),
        _lean_geometric_median,
    ),
    "trimmed mean": Contenders(
        lambda f: lambda x: TrimmedMean()(x, f),
        lambda f: _aggregators().TrMean(f),
        _lean_trimmed_mean,
    ),
    "median": Contenders(
        lambda f: lambda x: Median()(x, f), lambda f: _aggregators().Median(), _lean_median
    ),
    "mean around median": Contenders(
        lambda f: lambda x: MeanAroundMedian()(x, f), lambda f: _aggregators().Meamed(f)
    ),
    "Krum": Contenders(
        lambda f: lambda x: Krum()(x, f), lambda f: _aggregators().Krum(f), _lean_krum
    ),
    "Multi-Krum": Contenders(
        lambda f: lambda x: MultiKrum()(x, f),
        lambda f: _aggregators().MultiKrum(f),
        lambda f: _lean_krum(f, multi=True),
    ),
    "MDA": Contenders(
        lambda f: lambda x: MinimumDiameter()(x, f),
        lambda f: _aggregators().MDA(f),
        most_rows=20,
    ),
    "nearest-neighbour mixing": Contenders(
        _before(NearestNeighbourMixing()), lambda f: _preaggregators().NNM(f), _lean_mixing
    ),
    "bucketing by twos": Contenders(
        _before(Bucketing(bucket_size=2)), lambda f: _preaggregators().Bucketing(2)
    ),
}
"""By name."""
