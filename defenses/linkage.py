"""Single-linkage clustering, up to the first cluster that contains a majority of the points."""

from __future__ import annotations

from defenses.deferred import Tensor, torch

_LEVEL = 1e-6
"""Distances that differ by at most this count as equal: cosines of float32 rows are no more
precise."""


def first_majority(distances: Tensor) -> Tensor:
    """Returns a mask `[n]` bool of the first cluster of more than n / 2 points that single linkage
    forms.

    Points are joined in order of `distances` `[n, n]`, the nearest first. Points at equal distance,
    up to rounding, are joined together, so that their order does not matter. O(n^2).
    """
    cluster = list(range(len(distances)))
    members = {point: [point] for point in cluster}
    reach, majority = float("inf"), 0
    for length, start, end in sorted(_spanning_tree(distances)):
        if length > reach + _LEVEL:
            break
        into, out = cluster[start], cluster[end]
        for point in members[out]:
            cluster[point] = into
        members[into] += members.pop(out)
        if 2 * len(members[into]) > len(distances):
            reach, majority = min(reach, length), into
    chosen = torch.zeros(len(distances), dtype=torch.bool, device=distances.device)
    chosen[members[majority]] = True
    return chosen


def _spanning_tree(distances: Tensor) -> list[tuple[float, int, int]]:
    """Returns the n - 1 edges (length, start, end) of a minimum spanning tree (Prim's
    algorithm).
    """
    n, edges = len(distances), []
    outside = torch.ones(n, dtype=torch.bool, device=distances.device)
    near = torch.full((n,), torch.inf, dtype=distances.dtype, device=distances.device)
    nearest = torch.zeros(n, dtype=torch.int64, device=distances.device)
    point = 0
    for _ in range(n - 1):
        outside[point] = False
        closer = outside & (distances[point] < near)
        near = torch.where(closer, distances[point], near)
        nearest[closer] = point
        after = int(torch.where(outside, near, torch.inf).argmin())
        edges.append((float(near[after]), int(nearest[after]), after))
        point = after
    return edges
