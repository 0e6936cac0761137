"""Cells: public intervals of numbers, by which the numbers of a column are counted.

Together the cells cover all numbers, and no client's data determine their ends. If a column's range
is not public, cells are geometric: eight for each power of two on either side of zero, from 2^-16
to 2^40. Such a cell is never wider than an eighth of its distance from zero. Integers from 0 to 16
have separate cells, by which classes and flags are recognised. If a range is public, 64 cells of
equal width partition it.

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
"""Powers of two between which cells are geometric; one cell on either side holds all numbers of
larger magnitude."""
_PER_OCTAVE, _OCTAVES_TOGETHER = 8, 7
_POINTS = 16
"""Largest integer that has a cell of its own."""
_PARTS = 8
"""A public range is divided into this number of nodes, and each node into this number of cells."""
Cell = tuple[float, float]
Node = Cell | list["Node"]
"""A cell as (low, high), or the list of the children of a tree node, in ascending order."""


@dataclass(frozen=True, eq=False)
class Cells:
    """The c cells of a column's numbers, in ascending order, and the tree whose leaves they are.

    A cell ends where the next one begins, or at the float before.

    Attributes:
      lows: lower end of each cell, shape `[c]`.
      highs: upper end of each cell, shape `[c]`; equal to `lows` for a cell of a single number.
      tree: the tree of n nodes. Its first nodes may be leaves for entries that are not numbers.
      nodes: index of each cell's leaf in `tree`, shape `[c]`.
    """

    lows: Reals
    highs: Reals
    tree: Tree
    nodes: Indices

    def of(self, numbers: Reals) -> Indices:
        """Returns, for each of `numbers` `[N]`, the tree leaf of the cell that contains it, `[N]`.

        A cell contains its lower end, but not the lower end of the next cell. Numbers must not be
        NaN.
        """
        place = np.searchsorted(self.lows, numbers, side="right") - 1
        return np.asarray(self.nodes[np.maximum(place, 0)])

    @cached_property
    def below(self) -> Reals:
        """Lowest end of each tree node's own cell, or of the cells below it, `[n]`; NaN for leaves
        of entries that are not numbers.
        """
        return self._ends(self.lows, np.fmin)

    @cached_property
    def above(self) -> Reals:
        """Highest end of each tree node's own cell, or of the cells below it, `[n]`; NaN as in
        `below`.
        """
        return self._ends(self.highs, np.fmax)

    def _ends(self, ends: Reals, further: np.ufunc) -> Reals:
        out = np.full(len(self.tree), np.nan)
        out[self.nodes] = ends
        for nodes, first, parents in reversed(self.tree.families):
            out[parents] = further.reduceat(out[nodes], first)
        return out


def geometric_cells(others: int) -> Cells:
    """Returns the geometric cells of the module's docstring, which cover all numbers.

    Args:
      others: number of further leaves at the top of the tree, numbered first, for entries that are
        not numbers.
    """
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
    """Returns 64 cells of equal width from `low` to `high`, both inclusive, and one unbounded cell
    beyond either end.

    Args:
      low: lower end of the range.
      high: upper end of the range.
      others: number of further leaves at the top of the tree, numbered first, for entries that are
        not numbers.
    """
    edges = np.linspace(low, high, _PARTS**2 + 1).tolist()
    cells: list[Node] = [*itertools.pairwise(edges)]
    beyond = (math.nextafter(high, math.inf), math.inf)
    return _grown([(-math.inf, low), *_by(_PARTS, cells), beyond], others)


def _eighths(power: int) -> list[Cell]:
    """Returns the eight cells of equal width from 2^power to 2^(power + 1)."""
    edges = (2.0**power * (1 + np.arange(_PER_OCTAVE + 1) / _PER_OCTAVE)).tolist()
    return [*itertools.pairwise(edges)]


def _mirrored(power: int) -> list[Node]:
    """Returns the cells of `_eighths` mirrored at zero, ascending."""
    return [(-high, -low) for low, high in reversed(_eighths(power))]


def _octave(power: int) -> list[Node]:
    """Returns the cells from 2^power to 2^(power + 1); integers up to 16 have their own cells."""
    cells: list[Node] = []
    for low, high in _eighths(power):
        if low == round(low) <= _POINTS:
            cells += [(low, low), (math.nextafter(low, math.inf), high)]
        else:
            cells.append((low, high))
    return cells


def _by(size: int, nodes: Sequence[Node | list[Node]]) -> list[Node]:
    """Returns nodes whose children are `size` consecutive `nodes` each; the last may have fewer."""
    return [[*nodes[start : start + size]] for start in range(0, len(nodes), size)]


def _grown(top: Sequence[Node], others: int) -> Cells:
    """Returns the cells of a tree with the top nodes `top`, after `others` top nodes without
    children.
    """
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
