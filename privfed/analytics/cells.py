"""Public cells that partition the numbers; no client's data determine their ends.

If a column's range is not public, cells are geometric: eight for each power of two on either side
of zero, from 2^-16 to 2^40. Such a cell is never wider than an eighth of its distance from zero.
Integers from 0 to 16 have separate cells, by which classes and flags are recognised. If a range is
public, 64 cells of equal width partition it.

Cells are the leaves of a tree (`privfed.analytics.tree`), whose inner nodes combine about eight
cells or powers of two each. A sum over many cells is then a sum of few nodes, with less noise
(Qardaji, Yang & Li 2013 find a branching of 8 to 16 best).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from privfed.analytics.tree import Tree
from privfed.core.vector import Indices

Reals = NDArray[np.float64]
LEAST, LARGEST = -16, 40
"""Powers of two between which cells are geometric; numbers beyond have one cell on either side."""
_PER_OCTAVE, _OCTAVES_TOGETHER = 8, 7
_POINTS = 16
"""Largest integer with a separate cell."""
_PARTS = 8
"""Number of nodes of a public range, and of cells in each node."""
Cell = tuple[float, float]
Node = Cell | list["Node"]
"""A cell, or the children of a node of the tree, in order."""


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells in order: `lows` and `highs` `[c]` (equal for a single number), and their `tree`.

    A cell ends where the next one begins. `nodes` `[c]` are the cells' nodes in the tree. The top
    of the tree may have other nodes, for values that are not numbers.
    """

    lows: Reals
    highs: Reals
    tree: Tree
    nodes: Indices

    def of(self, numbers: Reals) -> Indices:
        """Returns the node `[N]` of each of `numbers` `[N]`, which must not hold NaN."""
        place = np.searchsorted(self.lows, numbers, side="right") - 1
        return np.asarray(self.nodes[np.maximum(place, 0)])

    @cached_property
    def below(self) -> Reals:
        """The lower end `[n]` of the cells in each node; NaN for nodes without numbers."""
        return self._ends(self.lows, np.fmin)

    @cached_property
    def above(self) -> Reals:
        """The upper end `[n]` of the cells in each node; NaN for nodes without numbers."""
        return self._ends(self.highs, np.fmax)

    def _ends(self, ends: Reals, further: np.ufunc) -> Reals:
        out = np.full(len(self.tree), np.nan)
        out[self.nodes] = ends
        for nodes, first, parents in reversed(self.tree.families):
            out[parents] = further.reduceat(out[nodes], first)
        return out


def geometric_cells(others: int) -> Cells:
    """Returns cells for all numbers, in a tree whose first `others` top nodes hold no numbers."""
    octaves = [_octave(power) for power in range(LEAST, LARGEST)]
    mirrored = [_mirrored(power) for power in range(LEAST, LARGEST)]
    tiny, huge = 2.0**LEAST, 2.0**LARGEST
    return _grown(
        [
            (-math.inf, -huge),
            *_by(_OCTAVES_TOGETHER, mirrored[::-1]),
            (-tiny, 0.0),
            (0.0, 0.0),
            (math.nextafter(0.0, 1.0), tiny),
            *_by(_OCTAVES_TOGETHER, octaves),
            (huge, math.inf),
        ],
        others,
    )


def uniform_cells(low: float, high: float, others: int) -> Cells:
    """Returns cells of equal width from `low` to `high`, and one cell beyond either end.

    Args:
      low: lower end of the range.
      high: upper end of the range.
      others: number of other nodes at the top of the tree.
    """
    edges = np.linspace(low, high, _PARTS**2 + 1).tolist()
    cells: list[Node] = [*itertools.pairwise(edges)]
    beyond = (math.nextafter(high, math.inf), math.inf)
    return _grown([(-math.inf, low), *_by(_PARTS, cells), beyond], others)


def _eighths(power: int) -> list[Cell]:
    """Returns the cells from 2^power to 2^(power + 1)."""
    edges = (2.0**power * (1 + np.arange(_PER_OCTAVE + 1) / _PER_OCTAVE)).tolist()
    return [*itertools.pairwise(edges)]


def _mirrored(power: int) -> list[Node]:
    """Returns the cells from -2^(power + 1) to -2^power."""
    return [(-high, -low) for low, high in reversed(_eighths(power))]


def _octave(power: int) -> list[Node]:
    """Returns the cells from 2^power to 2^(power + 1), with cells for small integers."""
    cells: list[Node] = []
    for low, high in _eighths(power):
        if low == round(low) <= _POINTS:
            cells += [(low, low), (math.nextafter(low, math.inf), high)]
        else:
            cells.append((low, high))
    return cells


def _by(size: int, nodes: Sequence[Node | list[Node]]) -> list[Node]:
    """Divides `nodes` into groups of `size`."""
    return [[*nodes[start : start + size]] for start in range(0, len(nodes), size)]


def _grown(top: Sequence[Node], others: int) -> Cells:
    """Returns the cells below the nodes `top`, in a tree with `others` childless nodes first."""
    parents, cells = [-1] * others, {}
    level: list[tuple[int, Node]] = [(-1, node) for node in top]
    while level:
        below: list[tuple[int, Node]] = []
        for parent, node in level:
            if isinstance(node, tuple):
                cells[node] = len(parents)
            else:
                below += [(len(parents), child) for child in node]
            parents.append(parent)
        level = below
    ordered = sorted(cells)
    lows, highs = np.array(ordered).T
    nodes = np.array([cells[cell] for cell in ordered])
    return Cells(lows, highs, Tree(np.array(parents)), nodes)
