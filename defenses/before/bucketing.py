"""Bucketing: replaces updates by the means of random groups of them."""

from __future__ import annotations

import math

from pydantic import Field

from defenses.deferred import Tensor, torch
from defenses.geometry import Geometry
from defenses.weighing import PreAggregator


class Bucketing(PreAggregator):
    """Averages updates within random buckets.

    The n updates are shuffled and partitioned into ceil(n / size) buckets, the last of which may be
    smaller; y_b = the mean of bucket b.

    Needs rows (or one secure sum per bucket). Each Byzantine client affects at most one bucket, so
    the rule applied next must tolerate f Byzantine rows among ceil(n / size). Bucketing reduces the
    differences between honest clients; alone it has no kappa. O(nd).

    Source: Karimireddy, He & Jaggi 2022, "Byzantine-robust learning on heterogeneous datasets via
    bucketing", algorithm 1.

    >>> import torch
    >>> from defenses.on_rows.median import Median
    >>> from defenses.weighing import Composed
    >>> rule = Composed(before=(Bucketing(bucket_size=2),), rule=Median())
    >>> rule(torch.full((4, 1), 3.0), byzantine=0, generator=torch.Generator().manual_seed(0))
    tensor([3.])
    """

    bucket_size: int = Field(2, ge=1)
    """Number of rows in a bucket; the last bucket may have fewer."""

    def needs(self) -> frozenset[str]:
        return frozenset({"generator"})

    def most(self, n: int) -> int:
        return n

    def left(self, n: int) -> int:
        return math.ceil(n / self.bucket_size)

    def mix(self, geometry: Geometry, byzantine: int, generator: torch.Generator | None) -> Tensor:
        if generator is None:
            raise ValueError("bucketing assigns updates at random; pass a generator")
        n = geometry.rows
        permutation = torch.randperm(n, generator=generator)
        weights = torch.zeros(self.left(n), n, dtype=torch.float64)
        weights[torch.arange(n) // self.bucket_size, permutation] = 1.0
        return weights / weights.sum(dim=1, keepdim=True)
