"""The compared implementations: ours, ByzFL's and, if there is one, a lean reference of the same
rule.

A rule that both libraries have is one entry of `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from defenses.before.arc import AdaptiveClipping
from defenses.before.bucketing import Bucketing
from defenses.before.clipping import Clipping
from defenses.before.nnm import NearestNeighbourMixing
from defenses.by_sums.centered_clipping import CenteredClipping
from defenses.by_sums.geometric_median import GeometricMedian
from defenses.by_sums.mean import Mean
from defenses.by_sums.norm_bound import NormBound
from defenses.on_rows.caf import CovarianceFilter
from defenses.on_rows.krum import Krum, MultiKrum
from defenses.on_rows.mda import MinimumDiameter
from defenses.on_rows.mean_around_median import MeanAroundMedian
from defenses.on_rows.median import Median
from defenses.on_rows.monna import TrustedNeighbours
from defenses.on_rows.smea import SmallestEigenvalue
from defenses.on_rows.trimmed_mean import TrimmedMean
from defenses.weighing import Composed, PreAggregator, mixtures
from experiments.benchmarks.work import lean_rules
from experiments.benchmarks.work.lean_rules import RADIUS, Rule
from experiments.peers import byzfl


@dataclass(frozen=True)
class Contenders:
    """Constructors of the same rule against f Byzantine rows, by implementation."""

    ours: Callable[[int], Rule]
    theirs: Callable[[int], Rule]
    lean: Callable[[int], Rule] | None = None
    most_rows: int = 1000
    """Largest number of rows that ByzFL's rule can process: fewer if it tries all subsets."""
    writes: bool = False
    """Whether ByzFL's rule writes into the rows that it receives."""


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
    return lambda rows: average(clip(rows))


def _adaptively_clipped_mean(f: int) -> Rule:
    clip, average = _preaggregators().ARC(f), _aggregators().Average()
    return lambda rows: average(clip(rows))


def _clipping(f: int) -> Rule:
    """Returns centered clipping that starts from its last center, as ByzFL's does."""
    rule, centers = CenteredClipping(radius=RADIUS), dict[str, Tensor]()

    def clipped(rows: Tensor) -> Tensor:
        centers["last"] = rule.on_rows(rows, centers.get("last"))
        return centers["last"]

    return clipped


RULES: dict[str, Contenders] = {
    "mean": Contenders(
        lambda f: lambda x: Mean()(x, 0),
        lambda f: _aggregators().Average(),
        lean_rules.mean,
    ),
    "norm bound": Contenders(
        lambda f: NormBound(radius=RADIUS).on_rows,
        _clipped_mean,
        lean_rules.norm_bound,
        writes=True,
    ),
    "centered clipping": Contenders(
        _clipping,
        lambda f: _aggregators().CenteredClipping(tau=RADIUS),
        lean_rules.clipping,
    ),
    "geometric median": Contenders(
        lambda f: lambda x: GeometricMedian()(x, f),
        lambda f: _aggregators().GeometricMedian(nu=0.1, T=3),
        lean_rules.geometric_median,
    ),
    "trimmed mean": Contenders(
        lambda f: lambda x: TrimmedMean()(x, f),
        lambda f: _aggregators().TrMean(f),
        lean_rules.trimmed_mean,
    ),
    "median": Contenders(
        lambda f: lambda x: Median()(x, f), lambda f: _aggregators().Median(), lean_rules.median
    ),
    "mean around median": Contenders(
        lambda f: lambda x: MeanAroundMedian()(x, f), lambda f: _aggregators().Meamed(f)
    ),
    "Krum": Contenders(
        lambda f: lambda x: Krum()(x, f), lambda f: _aggregators().Krum(f), lean_rules.krum
    ),
    "Multi-Krum": Contenders(
        lambda f: lambda x: MultiKrum()(x, f),
        lambda f: _aggregators().MultiKrum(f),
        lean_rules.multi_krum,
    ),
    "MDA": Contenders(
        lambda f: lambda x: MinimumDiameter()(x, f),
        lambda f: _aggregators().MDA(f),
        most_rows=20,
    ),
    "nearest-neighbour mixing": Contenders(
        _before(NearestNeighbourMixing()), lambda f: _preaggregators().NNM(f), lean_rules.mixing
    ),
    "clipping, then mean": Contenders(
        lambda f: lambda x: Composed(before=(Clipping(clipping_radius=RADIUS),), rule=Mean())(x, f),
        _clipped_mean,
        lean_rules.norm_bound,
        writes=True,
    ),
    "adaptive clipping, then mean": Contenders(
        lambda f: lambda x: Composed(before=(AdaptiveClipping(),), rule=Mean())(x, f),
        _adaptively_clipped_mean,
        writes=True,
    ),
    "CAF": Contenders(
        lambda f: lambda x: CovarianceFilter()(x, f), lambda f: _aggregators().CAF(f)
    ),
    "MoNNA": Contenders(
        lambda f: lambda x: TrustedNeighbours()(x, f, root=x[0]),
        lambda f: _aggregators().MoNNA(f),
    ),
    "SMEA": Contenders(
        lambda f: lambda x: SmallestEigenvalue()(x, f),
        lambda f: _aggregators().SMEA(f),
        most_rows=10,
    ),
    "bucketing by twos": Contenders(
        _before(Bucketing(bucket_size=2)), lambda f: _preaggregators().Bucketing(2)
    ),
}
"""The rules, by name."""
