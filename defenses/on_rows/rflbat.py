"""RFLBAT: of the clusters of updates, the one whose members resemble one another least."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from defenses.geometry import Geometry
from defenses.kmeans import clusters
from defenses.weighing import DrawnWeights

if TYPE_CHECKING:
    from defenses.weighing import Needs


class Rflbat(DrawnWeights):
    """The mean of a cluster of updates, once outliers are left out: hostile ones look alike.

    p_i are the rows' first two principal components, and e_i = sum_j |p_i - p_j| among those left.
    In turn: rows with e_i > `outer` median e are left out; k-means clusters the others' p, their
    number by the gap statistic; with c_i the mean cosine of x_i and others of its cluster, the
    cluster with the least median of c stays; of it, rows with e_i > `inner` median e are left
    out. F(x) is the mean of what is left.

    Needs rows, and a generator for the starts of k-means and the gap statistic; without one they
    are always the same. Against backdoors in any number whose updates resemble one another
    more than honest ones do. Where they do not, the cluster that stays is theirs: no kappa, and no
    tolerance of other attacks. A cluster of one row has no cosines, and stays where all are such.
    One Gram matrix, O(n^2 d + n^3).

    Source: Wang, Zhai, Zhan & Xia 2022, "RFLBAT: a robust federated learning algorithm against
    backdoor attack" (arXiv 2201.03772), by what published reimplementations agree on, thresholds
    10 and 4 among it; they differ in the space that is clustered, which is that of the components
    here (`defenses.kmeans`).

    >>> import torch
    >>> rows = torch.tensor([[1.0, 0.3], [0.9, -0.4], [1.2, 0.0], [-9.0, 9.0], [-9.0, 9.1]])
    >>> Rflbat()(rows, byzantine=2)
    tensor([ 1.0333, -0.0333])
    """

    outer: float = Field(10.0, ge=1)
    """Rows this many median distances away from all others are left out first."""
    inner: float = Field(4.0, ge=1)
    """Rows this many median distances away from others of the cluster are left out last."""
    clusters: int = Field(10, ge=1, le=100)
    """Into how many clusters updates are divided at most."""
    references: int = Field(10, ge=2, le=1000)
    """How many uniform sets of points the gap statistic compares with."""

    tolerance: ClassVar[str] = "backdoors more alike than honest updates"

    def needs(self) -> Needs:
        return frozenset({"generator"})

    def most(self, n: int) -> int:
        return n

    def weigh(
        self, geometry: Geometry, byzantine: int, generator: torch.Generator | None
    ) -> Tensor:
        generator = generator or torch.Generator().manual_seed(0)
        points, alike = _components(geometry), geometry.cosines()
        left = torch.arange(geometry.rows, device=points.device)
        left = left[_near(points[left], self.outer)]
        labels = clusters(points[left], self.clusters, self.references, generator)
        left = left[_least_alike(alike[left][:, left], labels)]
        left = left[_near(points[left], self.inner)]
        weights = points.new_zeros(geometry.rows)
        weights[left] = 1 / len(left)
        return weights


def _components(geometry: Geometry) -> Tensor:
    """The first two principal components `[n, 2]` of n rows, or the one of a single row."""
    values, vectors = torch.linalg.eigh(geometry.about_mean())
    components: Tensor = vectors[:, -2:] * values[-2:].clamp(min=0.0).sqrt()
    return components


def _near(points: Tensor, times: float) -> Tensor:
    """Which of `points` `[n, p]` are at most so many median distances away from all others."""
    away = torch.linalg.vector_norm(points[:, None] - points[None], dim=2).sum(1)
    near: Tensor = away <= times * away.quantile(0.5)
    return near


def _least_alike(cosines: Tensor, labels: Tensor) -> Tensor:
    """Which of n rows are in the cluster of least median mean cosine `[n]`, of equals the larger.

    All of them where no cluster has two.
    """
    groups = [labels == label for label in sorted(set(labels.tolist()))]
    scored = [
        (float(_mean_to_others(cosines[group][:, group]).quantile(0.5)), -int(group.sum()), place)
        for place, group in enumerate(groups)
        if int(group.sum()) > 1
    ]
    return groups[min(scored)[2]] if scored else torch.ones_like(labels, dtype=torch.bool)


def _mean_to_others(cosines: Tensor) -> Tensor:
    """The mean cosine `[m]` of each of m > 1 rows with the others, from `[m, m]`."""
    return (cosines.sum(1) - cosines.diagonal()) / (len(cosines) - 1)
