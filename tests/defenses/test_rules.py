"""What every rule keeps, whatever it computes."""

import math

import pytest
import torch
from rules import MOVES_WITH_ROWS, NNM, ROBUST, ROWS

from defenses.before.bucketing import Bucketing
from defenses.by_sums.centered_clipping import CenteredClipping
from defenses.by_sums.geometric_median import GeometricMedian
from defenses.by_sums.mean import Mean
from defenses.by_sums.norm_bound import NormBound
from defenses.by_sums.sign_majority import SignMajority
from defenses.on_rows.fltrust import FlTrust
from defenses.on_rows.foolsgold import FoolsGold
from defenses.on_rows.krum import Krum
from defenses.on_rows.median import Median
from defenses.on_rows.trimmed_mean import TrimmedMean
from defenses.types import RowRule, SumRule
from defenses.weighing import Composed

named = pytest.mark.parametrize("name", ROWS)


def cloud(n, d=6, seed=0, dtype=torch.float64):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def hostile_among(n, byzantine, bad, seed=0):
    """`cloud`, its rows from the first on replaced by `bad`."""
    rows = cloud(n, seed=seed, dtype=torch.float32)
    rows[:byzantine] = bad
    return rows


def test_a_rule_says_by_its_type_what_it_needs_to_see():
    assert isinstance(Mean(), SumRule)
    assert isinstance(GeometricMedian(), SumRule)
    assert isinstance(GeometricMedian(), RowRule)
    assert isinstance(Median(), RowRule)
    assert not isinstance(Median(), SumRule)
    assert Mean().sensitivity(1) == math.inf, "a mean bounds nothing by itself"


@named
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inputs_are_kept_and_dtypes_too(name, dtype):
    rows = cloud(11, dtype=dtype)
    before = rows.clone()
    out = ROWS[name](rows, 2)
    assert torch.equal(rows, before)
    assert out.dtype == dtype
    assert out.shape == (6,)
    transposed = rows.T.contiguous().T
    torch.testing.assert_close(ROWS[name](transposed, 2), out)


@named
def test_the_order_of_rows_does_not_matter(name):
    rows = cloud(15)  # of fewer, Bulyan picks among two that are each other's nearest
    order = torch.randperm(15, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ROWS[name](rows[order], 3), ROWS[name](rows, 3))


@pytest.mark.parametrize("name", MOVES_WITH_ROWS)
def test_moving_all_rows_moves_the_aggregate(name):
    rows, away = cloud(11), 3.0 * cloud(1, seed=9)[0]
    rule = MOVES_WITH_ROWS[name]
    torch.testing.assert_close(rule(rows + away, 2), rule(rows, 2) + away, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", MOVES_WITH_ROWS)
def test_scaling_all_rows_scales_the_aggregate(name):
    rule = MOVES_WITH_ROWS[name]
    scaled = rule(1000.0 * cloud(11), 2) / 1000.0
    torch.testing.assert_close(scaled, rule(cloud(11), 2), atol=2e-3, rtol=1e-3)


@named
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 1e30, 3e38])
@pytest.mark.parametrize("n", [9, 12])
def test_rows_that_cannot_be_computed_with_are_left_out_and_use_up_no_tolerance(name, bad, n):
    rule = ROWS[name]
    rows = hostile_among(n, 1, bad)
    torch.testing.assert_close(rule(rows, 1), rule(rows[1:], 1), atol=1e-5, rtol=1e-5)
    in_one_number = rows.clone()
    in_one_number[0] = 0.0
    in_one_number[0, 3] = bad
    torch.testing.assert_close(rule(in_one_number, 1), rule(rows, 1))


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("hostile", [1, 2, 3])
def test_honest_rows_that_broke_leave_hostile_ones_to_look_for(name, hostile):
    """One honest row of 16 is not finite: the hostile ones among the rest are still tolerated."""
    rule = ROBUST[name]
    rows = cloud(16, dtype=torch.float32)
    rows[:hostile], rows[9] = 1e6, torch.nan
    assert rule.most(15) >= hostile
    assert float(rule(rows, hostile).norm()) < 8
    assert float(TrimmedMean()(rows, hostile - 1).norm()) > 1e4, "one fewer would show"


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("broken", [1, 2, 3])
def test_with_rows_left_out_a_rule_looks_for_as_many_as_it_tolerates(name, broken):
    rule, n = ROBUST[name], 12
    k = rule.most(n)
    rows = hostile_among(n, broken, torch.nan)
    expected = rule(rows[broken:], min(k, rule.most(n - broken)))
    torch.testing.assert_close(rule(rows, k), expected, atol=1e-5, rtol=1e-5)
    assert rule.most(n - broken) >= k - broken, "where those left out were hostile, it suffices"


def test_a_mixing_before_another_rule_keeps_the_tolerance_that_both_have():
    rows, bound = hostile_among(9, 2, torch.nan), NormBound(radius=2.0)
    composed = Composed(before=(NNM,), rule=bound)
    assert (composed.most(9), composed.most(7)) == (4, 3)
    expected = bound.on_rows(_mixed(rows[2:], 3))
    torch.testing.assert_close(composed(rows, 4), expected)


@named
def test_with_no_row_left_nothing_moves(name):
    assert ROWS[name](torch.full((3, 2), torch.nan), 0).tolist() == [0.0, 0.0]
    assert ROWS[name](torch.empty(0, 2), 0).tolist() == [0.0, 0.0]


@named
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_few_rows_and_equal_rows_are_aggregated(name, n):
    rows = torch.full((n, 3), 0.5)
    if name in MOVES_WITH_ROWS:
        torch.testing.assert_close(ROWS[name](rows, 0), rows[0])
    assert ROWS[name](cloud(n, 1, dtype=torch.float32), 0).isfinite().all()


@named
@pytest.mark.parametrize("size", [1e3, 1e8, 1e14])
def test_long_hostile_rows_stay_finite_wherever_they_stand(name, size):
    for place in (0, 5, 10):
        rows = cloud(11, dtype=torch.float32)
        rows[place] = size
        rows[(place + 3) % 11] = -size
        out = ROWS[name](rows, 2)
        assert out.isfinite().all()
        if name in ROBUST:
            assert float(out.norm()) < 8, f"row {place} of {size:g} moved it"


@pytest.mark.parametrize(
    "name", ["krum", "multi_krum", "mda", "nnm", "geometric_median", "caf", "smea", "monna"]
)
def test_hostile_rows_cannot_hide_behind_one_another(name):
    """Each so far out that beside it the next ones, and all honest rows, look like one point."""
    for seed in range(6):
        rows = cloud(30, 500, seed=seed, dtype=torch.float32)
        away = torch.nn.functional.normalize(cloud(4, 500, seed=99, dtype=torch.float32))
        rows[:4] = away * torch.tensor([[9e14], [2e11], [4e7], [1e4]])
        turned = rows.flip(0)
        torch.testing.assert_close(ROWS[name](rows, 4), ROWS[name](turned, 4), atol=1e-4, rtol=0)


@pytest.mark.parametrize("size", [0.0, 1e-3, 1e-5, 1e-7, 1e-23, 1e-30, 1e-38])
def test_short_rows_do_not_silence_rules_that_look_at_directions(size):
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        rows = torch.randn(10, 50, generator=generator)
        root = rows[:9].mean(0)
        rows[9] = size * torch.sign(root)
        assert FlTrust()(rows, 1, root=root).norm() > 0.3 * root.norm()
        assert FoolsGold()(rows, 1).norm() > 0.3 * root.norm()


@named
def test_rows_that_carry_gradients_are_aggregated(name):
    rows = cloud(9).requires_grad_()
    torch.testing.assert_close(ROWS[name](rows, 1), ROWS[name](rows.detach(), 1))


@named
def test_more_hostile_rows_than_a_rule_tolerates_are_refused(name):
    rule = ROWS[name]
    if rule.most(11) < 11:
        with pytest.raises(ValueError, match="tolerates at most"):
            rule(cloud(11), rule.most(11) + 1)
    with pytest.raises(ValueError, match="tolerates at most"):
        rule(cloud(11), -1)
    with pytest.raises(TypeError, match="float32 or float64"):
        rule(cloud(11).half(), 0)


def test_bucketing_deals_by_its_generator_and_keeps_the_mean():
    rows, rule = cloud(10), Composed(before=(Bucketing(bucket_size=5),), rule=Krum())

    def dealt(seed):
        return rule(rows, 0, generator=torch.Generator().manual_seed(seed))

    torch.testing.assert_close(dealt(1), dealt(1))
    assert any(not torch.equal(dealt(0), dealt(seed)) for seed in range(1, 5))
    mean = Composed(before=(Bucketing(bucket_size=5),), rule=Mean())
    torch.testing.assert_close(mean(rows, 0, generator=torch.Generator()), rows.mean(0))
    with pytest.raises(ValueError, match="generator"):
        mean(rows, 0)
    assert rule.needs() == {"generator"}


def test_any_rule_is_composed_whatever_it_needs():
    """By rows that are mixed first, and then given to it."""
    rows, root, before = cloud(9), cloud(1, seed=3)[0], (NNM,)
    mixed = _mixed(rows, 2)
    pairs = [
        (Composed(before=before, rule=FlTrust()), {"root": root}, FlTrust()(mixed, 2, root=root)),
        (Composed(before=before, rule=SignMajority()), {}, SignMajority().on_rows(mixed)),
        (
            Composed(before=before, rule=CenteredClipping(radius=1.0)),
            {"center": root},
            CenteredClipping(radius=1.0).on_rows(mixed, root),
        ),
        (Composed(before=before, rule=Median()), {}, Median()(mixed, 2)),
    ]
    for rule, given, expected in pairs:
        assert rule.needs() == set(given)
        torch.testing.assert_close(rule(rows, 2, **given), expected)


def _mixed(rows, byzantine):
    """Nearest-neighbour mixing by the letter."""
    distances = torch.cdist(rows, rows)
    nearest = distances.argsort(dim=1)[:, : len(rows) - byzantine]
    return rows[nearest].mean(1)


def test_pre_aggregators_follow_one_another():
    rows = cloud(12)
    rule = Composed(before=(Bucketing(bucket_size=2), NNM), rule=Median())
    dealt = torch.randperm(12, generator=torch.Generator().manual_seed(4))
    buckets = rows[dealt].reshape(6, 2, -1).mean(1)
    expected = Median()(_mixed(buckets, 1), 1)
    aggregate = rule(rows, 1, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(aggregate, expected)
    assert rule.most(12) == 2, "six buckets, fewer than half of them spoiled"
