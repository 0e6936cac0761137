"""k-means in a few dimensions, with the number of clusters chosen by the gap statistic.

Source: Arthur & Vassilvitskii 2007, "k-means++: the advantages of careful seeding", section 2.2.
"""

from __future__ import annotations

import math

from defenses.deferred import Tensor, torch
from defenses.gap import gap

_STARTS, _STEPS = 8, 100
_NOTHING = 1e-30
"""Value up to which squared distances and sides of a box are treated as zero."""


def clusters(points: Tensor, most: int, references: int, generator: torch.Generator) -> Tensor:
    """Returns the label `[n]` of each point's cluster, for at most `most` clusters.

    The number of clusters is the smallest k with Gap(k) >= Gap(k + 1) - s_(k+1) (`defenses.gap`),
    or min(`most`, n) if no smaller k satisfies this.

    Args:
      points: points to cluster, shape [n, p].
      most: largest number of clusters.
      references: number of reference sets of n points, uniform in the bounding box of `points`.
      generator: source of randomness on the CPU.
    """
    low, high = points.min(0).values, points.max(0).values
    longest = (high - low).max().clamp(min=_NOTHING)  # the gap is the same at any scale
    scaled, sides = (points - low) / longest, (high - low) / longest
    shape = (references, *points.shape)
    drawn = torch.rand(shape, generator=generator, dtype=points.dtype).to(points.device) * sides
    labels, former = torch.zeros(len(points), dtype=torch.int64, device=points.device), -math.inf
    for k in range(1, min(most, len(points)) + 1):
        split, within = k_means(scaled[None], k, generator)
        _, expected = k_means(drawn, k, generator)
        of_k, error = gap(within[0], expected)
        if former >= of_k - error:
            return labels
        labels, former = split[0], of_k
    return labels


def k_means(sets: Tensor, k: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns the labels `[b, n]` of b sets of n points, each in k clusters.

    Also returns the sum of squares within the clusters of each set, `[b]`. The result is the best
    of Lloyd's algorithm from several random starts (k-means++).

    Args:
      sets: the points, shape [b, n, p].
      k: number of clusters.
      generator: source of randomness on the CPU.
    """
    points = sets.repeat_interleave(_STARTS, dim=0)
    centers = _starts(points, k, generator)
    for _ in range(_STEPS):
        nearest = _squared(points, centers).argmin(dim=2)
        member = torch.nn.functional.one_hot(nearest, k).to(points)
        count = member.sum(1)[..., None]
        means = member.transpose(1, 2) @ points / count.clamp(min=1.0)
        moved = torch.where(count > 0, means, centers)
        if torch.equal(moved, centers):
            break
        centers = moved
    distances, nearest = _squared(points, centers).min(dim=2)
    within = distances.sum(1).reshape(len(sets), _STARTS)
    best = within.argmin(dim=1)
    each = torch.arange(len(sets), device=sets.device)
    return nearest.reshape(len(sets), _STARTS, -1)[each, best], within[each, best]


def _starts(points: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Draws k of the points as initial centers `[b, k, p]`, by the probabilities of k-means++."""
    each = torch.arange(len(points), device=points.device)
    weights = torch.ones(points.shape[:2], dtype=points.dtype)
    centers: list[Tensor] = []
    for _ in range(k):
        place = torch.multinomial(weights, 1, generator=generator)[:, 0].to(points.device)
        centers.append(points[each, place])
        weights = _squared(points, torch.stack(centers, dim=1)).min(dim=2).values.cpu()
        weights = weights + (weights.sum(1, keepdim=True) <= _NOTHING)
    return torch.stack(centers, dim=1)


def _squared(points: Tensor, centers: Tensor) -> Tensor:
    """Returns squared distances `[b, n, k]` of points `[b, n, p]` to centers `[b, k, p]`."""
    return (points[:, :, None] - centers[:, None]).square().sum(3)
