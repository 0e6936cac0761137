"""What every rule keeps, whatever it computes."""

import math

import pytest
import torch
from lanes import every_case
from rules import MIXED, NNM, ROWS

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
from defenses.testing import refuses_more_byzantine_rows_than_it_tolerates
from defenses.types import RowRule, SumRule
from defenses.weighing import Composed


def cloud(n, d=6, seed=0, dtype=torch.float64):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def byzantine_among(n, byzantine, bad, seed=0):
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


def test_a_mixing_before_another_rule_keeps_the_tolerance_that_both_have():
    rows, bound = byzantine_among(9, 2, torch.nan), NormBound(radius=2.0)
    composed = Composed(before=(NNM,), rule=bound)
    assert (composed.most(9), composed.most(7)) == (4, 3)
    expected = bound.on_rows(_mixed(rows[2:], 3))
    torch.testing.assert_close(composed(rows, 4), expected)


@every_case(
    "name",
    ["krum", "multi_krum", "mda", "nnm, trimmed_mean", "geometric_median", "caf", "smea", "monna"],
)
def test_hostile_rows_cannot_hide_behind_one_another(name):
    """Each so far out that beside it the next ones, and all honest rows, look like one point."""
    for seed in range(6):
        rows = cloud(30, 500, seed=seed, dtype=torch.float32)
        away = torch.nn.functional.normalize(cloud(4, 500, seed=99, dtype=torch.float32))
        rows[:4] = away * torch.tensor([[9e14], [2e11], [4e7], [1e4]])
        turned = rows.flip(0)
        torch.testing.assert_close(ROWS[name](rows, 4), ROWS[name](turned, 4), atol=1e-4, rtol=0)


@every_case("size", [0.0, 1e-3, 1e-5, 1e-7, 1e-23, 1e-30, 1e-38])
def test_short_rows_do_not_silence_rules_that_look_at_directions(size):
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        rows = torch.randn(10, 50, generator=generator)
        root = rows[:9].mean(0)
        rows[9] = size * torch.sign(root)
        assert FlTrust()(rows, 1, root=root).norm() > 0.3 * root.norm()
        assert FoolsGold()(rows, 1).norm() > 0.3 * root.norm()


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


@every_case("name", MIXED)
def test_more_hostile_rows_than_a_composition_tolerates_are_refused(name):
    refuses_more_byzantine_rows_than_it_tolerates(MIXED[name].part)
