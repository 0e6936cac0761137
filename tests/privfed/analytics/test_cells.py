"""Public cells part all numbers, finely where they lie."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privfed.analytics.cells import LARGEST, LEAST, geometric_cells, uniform_cells

GEOMETRIC, UNIFORM = geometric_cells(2), uniform_cells(-5.0, 11.0, 2)


@pytest.mark.parametrize("cells", [GEOMETRIC, UNIFORM])
def test_cells_follow_each_other_and_are_leaves(cells):
    assert (np.diff(cells.lows) > 0).all()
    assert np.allclose(cells.highs[:-1], cells.lows[1:], rtol=1e-12, atol=1e-300)
    assert cells.tree.is_leaf[cells.nodes].all()
    assert len(np.unique(cells.nodes)) == len(cells.nodes) == len(cells.tree.leaves) - 2
    assert (np.diff(cells.tree.parents) >= 0).all()


@given(st.floats(allow_nan=False))
def test_every_number_lies_in_its_cell(number):
    for cells in (GEOMETRIC, UNIFORM):
        (node,) = cells.of(np.array([number]))
        place = int(np.flatnonzero(cells.nodes == node)[0])
        assert cells.lows[place] <= number
        assert number < cells.highs[place] or number in (cells.highs[place], math.inf)
        path = cells.tree.paths(np.array([node]), 3)[0]
        inner = path[path >= 0]
        assert (cells.below[inner] <= number).all()
        assert (cells.above[inner] >= number).all()


def test_a_cell_is_never_wide_for_where_it_lies():
    ends = np.abs([GEOMETRIC.lows, GEOMETRIC.highs])
    inner = (ends.min(0) >= 2.0**LEAST) & (ends.max(0) <= 2.0**LARGEST)
    assert inner.sum() > 800
    widths = GEOMETRIC.highs[inner] - GEOMETRIC.lows[inner]
    assert (widths <= ends.min(0)[inner] / 8 * 1.0001).all()


def test_small_whole_numbers_have_cells_of_their_own():
    for whole in range(17):
        cells = GEOMETRIC.of(np.array([whole - 1e-9, whole, whole + 1e-9]))
        assert len({*cells.tolist()}) == 3
    assert GEOMETRIC.of(np.array([-0.0])) == GEOMETRIC.of(np.array([0.0]))


def test_a_public_range_is_parted_evenly():
    inside = np.linspace(-5.0, 11.0, 65)
    counts = np.unique(UNIFORM.of(inside), return_counts=True)[1]
    assert sorted(counts.tolist()) == [1] * 63 + [2]
    below, low, high, above = UNIFORM.of(np.array([-5.1, -5.0, 11.0, 11.1]))
    assert UNIFORM.above[below] == -5.0
    assert UNIFORM.below[low] == -5.0
    assert UNIFORM.above[high] == 11.0
    assert math.isinf(UNIFORM.above[above])
