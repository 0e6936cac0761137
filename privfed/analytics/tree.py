"""Estimates consistent counts on a tree from noised counts of every node.

A node's true count is the sum of its children's counts. The best linear unbiased estimates with
this property, from measurements with independent noise, take two passes over the tree, upwards and
downwards. The variance of any sum of leaves follows from the same passes (Hay, Rastogi, Miklau &
Suciu 2010, section 4; here noise may differ from node to node).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from privfed.core.vector import Indices

Reals = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Tree:
    """A tree of n nodes, or several trees side by side: a node without a parent is at the top.

    Nodes are numbered level by level. `parents` `[n]` is the index of each node's parent, -1 for
    nodes at the top; it never decreases.
    """

    parents: Indices

    def __len__(self) -> int:
        return len(self.parents)

    @classmethod
    def flat(cls, nodes: int) -> Tree:
        """Returns a tree whose nodes are all at the top."""
        return cls(np.full(nodes, -1, dtype=np.int64))

    @cached_property
    def depths(self) -> Indices:
        """The number of ancestors of each node, shape `[n]`; 0 at the top."""
        depths = np.zeros(len(self), dtype=np.int64)
        for node in np.flatnonzero(self.parents >= 0):
            depths[node] = depths[self.parents[node]] + 1
        return depths

    @cached_property
    def is_leaf(self) -> NDArray[np.bool_]:
        """Mask of the nodes without children, shape `[n]`."""
        return ~np.isin(np.arange(len(self)), self.parents)

    @cached_property
    def leaves(self) -> Indices:
        """The indices of the nodes without children."""
        return np.flatnonzero(self.is_leaf)

    @cached_property
    def families(self) -> list[tuple[slice, Indices, Indices]]:
        """For each level below the top: the slice of its nodes, the first child of each family, the
        parents.

        A family is the children of one parent. First children are counted from the first node of
        the level, as `numpy.ufunc.reduceat` expects; the parents are in the same order.
        """
        families = []
        for depth in range(1, int(self.depths.max()) + 1):
            level = np.flatnonzero(self.depths == depth)
            first = np.flatnonzero(np.diff(self.parents[level], prepend=-1))
            nodes = slice(int(level[0]), int(level[-1]) + 1)
            families.append((nodes, first, self.parents[level][first]))
        return families

    @cached_property
    def path_lengths(self) -> Indices:
        """The number of nodes on the longest path from the top to a leaf through each node, shape
        `[n]`.
        """
        lengths = self.depths + 1
        for nodes, first, parents in reversed(self.families):
            lengths[parents] = np.maximum.reduceat(lengths[nodes], first)
        return lengths

    def paths(self, leaves: Indices, width: int) -> Indices:
        """Returns each leaf and its ancestors, up to the top, shape `[k, width]`.

        Args:
          leaves: indices of nodes, shape `[k]`.
          width: length of a path; shorter paths are filled with -1.
        """
        columns, nodes = [], leaves
        for _ in range(width):
            columns.append(nodes)
            nodes = np.where(nodes >= 0, self.parents[nodes], -1)
        return np.stack(columns, axis=1)


@dataclass(frozen=True, eq=False)
class AgreeingCounts:
    """Consistent estimates of a tree's counts: children add up to their parent.

    Attributes:
      tree: the tree, of n nodes.
      counts: the estimates, shape `[..., n]`.
      partial: variance of the estimate of each node's count from the node's subtree alone, `[n]`.
      total_variance: variance of the sum of the top nodes' counts.
    """

    tree: Tree
    counts: Reals
    partial: Reals
    total_variance: float

    def linear(self, weights: Reals) -> tuple[Reals, Reals]:
        """Returns f weighted sums of the leaves' counts, and their standard deviations.

        Args:
          weights: weight of each node in each sum, shape `[f, n]`; 0 for nodes that are no leaves.

        Returns:
          Sums of shape `[..., f]` and standard deviations of shape `[f]`.
        """
        values = self.counts @ weights.T
        weights, variance = weights.copy(), np.zeros(len(weights))
        for nodes, first, parents in reversed(self.tree.families):
            within, upwards = _parted(weights[:, nodes], self.partial[nodes], first)
            variance += within
            weights[:, parents] += upwards
        top = self.tree.depths == 0
        within, upwards = _parted(weights[:, top], self.partial[top], np.zeros(1, dtype=np.int64))
        variance += within + upwards[:, 0] ** 2 * self.total_variance
        return values, np.sqrt(np.maximum(variance, 0.0))


def _parted(weights: Reals, partial: Reals, first: Indices) -> tuple[Reals, Reals]:
    """Returns the variances `[f]` of weighted sums given each family's sum, and the sums' weights.

    The weight `[f, p]` is that with which each of p families' sums enters a weighted sum. The
    estimates of siblings, minus their parts of their sum, are independent of the sum.

    Args:
      weights: weight of each node in each sum, shape `[f, m]`.
      partial: variance of each node's estimate, shape `[m]`.
      first: index of the first node of each family, shape `[p]`.
    """
    sums = np.add.reduceat(partial, first)
    cross = np.add.reduceat(weights * partial, first, axis=1)
    squares = np.add.reduceat(weights**2 * partial, first, axis=1)
    return (squares - cross**2 / sums).sum(1), cross / sums


def measured_total(tree: Tree, counts: Reals, variances: Reals) -> tuple[Reals, float]:
    """Returns the best linear unbiased estimate of the sum of the top nodes' counts, and its
    variance.

    Args:
      tree: the tree, of n nodes.
      counts: measured counts, shape `[..., n]`.
      variances: variances of the noise on `counts`, shape `[n]`.

    Returns:
      The estimate, of shape `[...]`, and its variance.
    """
    known, partial = _upwards(tree, counts, variances)
    top = tree.depths == 0
    return known[..., top].sum(-1), float(partial[top].sum())


def agreeing(
    tree: Tree, counts: Reals, variances: Reals, total: Reals | float, total_variance: float
) -> AgreeingCounts:
    """Returns the best linear unbiased estimates with consistent counts, given their total.

    Args:
      tree: the tree.
      counts: measured counts, shape `[..., n]`.
      variances: variances of the noise on `counts`, shape `[n]`.
      total: the best estimate of the sum of the top nodes' counts, which may depend on `counts`,
        shape `[...]`.
      total_variance: variance of `total`.
    """
    known, partial = _upwards(tree, counts, variances)
    agreed, top = known.copy(), tree.depths == 0
    share = partial[top] / partial[top].sum()
    agreed[..., top] += share * (np.asarray(total)[..., None] - known[..., top].sum(-1)[..., None])
    for nodes, first, parents in tree.families:
        gap = agreed[..., parents] - np.add.reduceat(known[..., nodes], first, axis=-1)
        sums = np.add.reduceat(partial[nodes], first)
        size = np.diff(np.append(first, nodes.stop - nodes.start))
        agreed[..., nodes] += partial[nodes] * np.repeat(gap / sums, size, axis=-1)
    return AgreeingCounts(tree, agreed, partial, total_variance)


def _upwards(tree: Tree, counts: Reals, variances: Reals) -> tuple[Reals, Reals]:
    """Returns an estimate of each node's count from its subtree, `[..., n]`, and its variance,
    `[n]`.
    """
    known, partial = counts.copy(), np.maximum(variances, 1e-18)
    for nodes, first, parents in reversed(tree.families):
        sums = np.add.reduceat(known[..., nodes], first, axis=-1)
        below = np.add.reduceat(partial[nodes], first)
        both = 1.0 / (1.0 / partial[parents] + 1.0 / below)
        known[..., parents] = both * (known[..., parents] / partial[parents] + sums / below)
        partial[parents] = both
    return known, partial


def nonnegative(tree: Tree, agreed: Reals) -> Reals:
    """Returns the estimates `agreed` `[n]` made non-negative; children still add up to their
    parent.

    From the top down, the counts of each set of siblings are the closest to `agreed` in the
    Euclidean norm under these constraints.
    """
    counts, top = np.zeros(len(tree)), np.flatnonzero(tree.depths == 0)
    counts[top] = _closest(agreed[top], max(float(agreed[top].sum()), 0.0))
    for nodes, first, parents in tree.families:
        ends = np.append(first[1:], nodes.stop - nodes.start)
        for start, end, parent in zip(first, ends, parents, strict=True):
            family = slice(nodes.start + int(start), nodes.start + int(end))
            counts[family] = _closest(agreed[family], float(counts[parent]))
    return counts


def _closest(values: Reals, total: float) -> Reals:
    """Returns the point closest to `values` `[k]` that is non-negative and whose entries sum to
    `total`.

    Zeros if `total` is not positive. Duchi, Shalev-Shwartz, Singer & Chandra 2008, figure 1.
    """
    if total <= 0.0:
        return np.zeros_like(values)
    falling = np.sort(values)[::-1]
    excess = (np.cumsum(falling) - total) / np.arange(1, len(values) + 1)
    threshold = excess[np.flatnonzero(falling > excess)[-1]]
    closest = np.maximum(values - threshold, 0.0)
    closest[closest < 1e-9 * total] = 0.0
    return np.asarray(closest * (total / closest.sum()))
