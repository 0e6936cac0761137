"""Clipped rows are finite and within the clip, in float64, for any input whatever."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from lanes import every_case

from privfed.core.errors import Refused
from privfed.privacy.clipping import clip_rows, on_grid, toward_zero
from privfed.privacy.mechanism import BoundedRows
from privfed.secure.plain_sum import PlainAccumulator

ANY_ROWS = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(1, 9)),
    elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
)


def norms(rows):
    return np.linalg.norm(rows.double().numpy(), axis=1)


@settings(max_examples=400)
@given(rows=ANY_ROWS, clip=st.floats(1e-6, 1e20))
def test_any_row_becomes_finite_and_no_longer_than_the_clip(rows, clip):
    rows = torch.from_numpy(rows)
    before = rows.clone()
    bounded = clip_rows(rows, clip)
    assert bounded.bound == clip
    assert bounded.rows.dtype == rows.dtype
    assert bounded.rows.isfinite().all()
    assert (norms(bounded.rows) <= clip).all()
    torch.testing.assert_close(rows, before, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(-30, 25), clip=st.floats(1e-3, 1e3))
def test_long_rows_in_many_dimensions(seed, scale, clip):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(3, 20_000, generator=generator) * 10.0**scale
    bounded = clip_rows(rows, clip).rows
    assert (norms(bounded) <= clip).all()
    long = norms(rows) > clip * (1 + 1e-6)
    assert (norms(bounded)[long] >= clip * (1 - 2.0**-20)).all(), "more was clipped than needed"


def test_short_rows_are_left_alone_and_long_ones_keep_their_direction():
    rows = torch.tensor([[0.3, 0.4], [30.0, 40.0], [0.0, 0.0]])
    bounded = clip_rows(rows, 1.0).rows
    torch.testing.assert_close(bounded[0], rows[0], rtol=0, atol=0)
    torch.testing.assert_close(bounded[1], torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(bounded[2], rows[2], rtol=0, atol=0)


@every_case("bad", [torch.nan, torch.inf, -torch.inf, 1e31])
def test_a_row_that_is_not_usable_contributes_zero_and_spoils_no_other(bad):
    rows = torch.tensor([[1.0, 2.0], [bad, 1.0], [0.1, 0.1]])
    bounded = clip_rows(rows, 1.0).rows
    assert (bounded[1] == 0).all()
    torch.testing.assert_close(bounded[[0, 2]], clip_rows(rows[[0, 2]], 1.0).rows)


def test_float64_rows_keep_their_type():
    bounded = clip_rows(torch.full((2, 3), 1e200, dtype=torch.float64), 1.0).rows
    assert bounded.dtype == torch.float64
    assert (bounded == 0).all()


@every_case("clip", [0.0, -1.0, 1e-7, 1e21, float("nan"), float("inf")])
def test_a_clip_without_proof_is_refused(clip):
    with pytest.raises(Refused, match="clip"):
        clip_rows(torch.ones(1, 2), clip)


def test_a_type_without_proof_is_refused():
    with pytest.raises(TypeError, match="float16"):
        clip_rows(torch.ones(1, 2, dtype=torch.float16), 1.0)


def test_no_rows_stay_no_rows():
    assert clip_rows(torch.empty(0, 4), 1.0).rows.shape == (0, 4)


def test_rows_wider_than_a_block_are_clipped_by_their_whole_norm():
    rows = torch.zeros(2, 150_001)
    rows[0, [0, 70_000, 150_000]] = 3.0
    bounded = clip_rows(rows, 1.0)
    torch.testing.assert_close(bounded.rows[0, [0, 70_000, 150_000]], torch.full((3,), 3**-0.5))
    summing = PlainAccumulator(150_001, 1.0)
    summing.add(np.arange(2), bounded)
    summing.add(np.array([2]), BoundedRows(bounded.rows[:1], 1.0))
    with pytest.raises(ValueError, match="but the sum has 150001"):
        summing.add(np.array([4]), BoundedRows(bounded.rows[:1, :70_000], 1.0))
    total = summing.close().total
    assert torch.equal(total, 2 * bounded.rows[0].double())
    with pytest.raises(ValueError, match="but the sum has 0"):
        summing.add(np.array([3]), BoundedRows(bounded.rows[:1], 1.0))
    assert torch.equal(total, 2 * bounded.rows[0].double())


def test_rows_given_are_never_changed():
    rows = torch.randn(3, 5)
    before = rows.clone()
    on_grid(BoundedRows(rows, 10.0), 0.25)
    clip_rows(rows, 0.1)
    assert torch.equal(rows, before)


@given(st.lists(st.floats(-1e9, 1e9, width=32), max_size=20))
def test_whole_numbers_lie_toward_zero(numbers):
    found = toward_zero(torch.tensor(numbers, dtype=torch.float32))
    assert found.tolist() == [math.trunc(number) for number in numbers]


@every_case("dtype", [torch.float32, torch.float64])
@every_case("length", [1, 700, (1 << 16) + 3, 200_003])
def test_clipping_onto_a_grid_in_one_pass_is_both_in_turn(dtype, length):
    """No number is left off the grid, and none grows: the norm stays within the clip."""
    rows = torch.randn(4, length, generator=torch.Generator().manual_seed(1), dtype=dtype)
    rows[1] *= 1e-4
    rows[2, -1] = torch.nan
    grid = 2.0**-12
    clipped = clip_rows(rows, 0.4, grid)
    assert torch.equal(clipped.rows, on_grid(clip_rows(rows, 0.4), grid).rows)
    assert bool((clipped.rows.double() % grid == 0.0).all())
    assert (norms(clipped.rows) <= 0.4).all()
    assert bool((clipped.rows.abs() <= clip_rows(rows, 0.4).rows.abs()).all())


def test_a_grid_that_single_precision_cannot_divide_by_is_refused():
    rows = torch.tensor([[0.0, 1e-3]])
    for grid in (2.0**-130, 2.0**110):
        with pytest.raises(Refused, match="change the noise multiplier or the clip"):
            clip_rows(rows, 1.0, grid)
    assert clip_rows(rows, 1.0, 2.0**-100).rows.isfinite().all()
