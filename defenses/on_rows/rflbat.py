"""RFLBAT: averages the cluster of updates whose members resemble one another least."""

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
    """The mean of the least similar cluster of updates after outliers are removed (RFLBAT).

    p_i are the rows' first two principal components, and e_i = sum_j |p_i - p_j| among the
    remaining rows. First, rows with e_i > `outer` median e are removed. k-means then clusters the p
    of the others, with the number of clusters chosen by the gap statistic. With c_i the mean cosine
    of x_i and the others of its cluster, the cluster with the least median of c is kept. Finally,
    rows of that cluster with e_i > `inner` median e are removed. F(x) is the mean of the remaining
    rows.

    Needs rows, and a generator for the starts of k-means and the gap statistic; without one these
    are fixed. Tolerates backdoors of any number of clients whose updates resemble one another more
    than honest ones do. If they do not, the Byzantine cluster is kept: no kappa, and no tolerance
    of other attacks. A cluster of one row has no cosines, and is kept only if all clusters are of
    one row. One Gram matrix, O(n^2 d + n^3).

    Source: Wang, Zhai, Zhan & Xia 2022, "RFLBAT: a robust federated learning algorithm against
    backdoor attack" (arXiv 2201.03772), following published reimplementations where they agree, as
    on the thresholds 10 and 4. The reimplementations differ in the space that is clustered,
    which here is that of the components (`defenses.kmeans`).

    >>> import torch
    >>> rows = torch.tensor([[1.0, 0.3], [0.9, -0.4], [1.2, 0.0], [-9.0, 9.0], [-9.0, 9.1]])
    >>> Rflbat()(rows, byzantine=2)
    tensor([ 1.0333, -0.0333])
    """

    outer: float = Field(10.0, ge=1)
    """Threshold, in median distances from all others, above which rows are removed first."""
    inner: float = Field(4.0, ge=1)
    """Threshold, in median distances from others of the cluster,
    above which rows are removed last."""
    clusters: int = Field(10, ge=1, le=100)
    """Largest number of clusters of updates."""
    references: int = Field(10, ge=2, le=1000)
    """Number of uniform sets of points that the gap statistic compares with."""

    tolerance: ClassVar[str] = "backdoors that are more similar than honest updates"

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
    """Returns the second and first principal components `[n, 2]` of n rows; `[1, 1]` for n = 1."""
    values, vectors = torch.linalg.eigh(geometry.about_mean())
    components: Tensor = vectors[:, -2:] * values[-2:].clamp(min=0.0).sqrt()
    return components


def _near(points: Tensor, times: float) -> Tensor:
    """Returns a mask `[n]` of the `points` `[n, p]` whose sum of distances to all points is at most
    `times` the median of these sums.
    """
    away = torch.linalg.vector_norm(points[:, None] - points[None], dim=2).sum(1)
    near: Tensor = away <= times * away.quantile(0.5)
    return near


def _least_alike(cosines: Tensor, labels: Tensor) -> Tensor:
    """Returns a mask `[n]` of the cluster with the smallest median of mean cosines.

    If medians are equal, the larger cluster is marked. All rows are marked if no cluster has two
    rows.
    """
    groups = [labels == label for label in sorted(set(labels.tolist()))]
    scored = [
        (float(_mean_to_others(cosines[group][:, group]).quantile(0.5)), -int(group.sum()), place)
        for place, group in enumerate(groups)
        if int(group.sum()) > 1
    ]
    return groups[min(scored)[2]] if scored else torch.ones_like(labels, dtype=torch.bool)


def _mean_to_others(cosines: Tensor) -> Tensor:
    """Returns the mean cosine `[m]` of each of m > 1 rows with the others, from `[m, m]`."""
    return (cosines.sum(1) - cosines.diagonal()) / (len(cosines) - 1)
