"""The first two aggregation rules."""

import math

import pytest
import torch

from defenses.mean import Mean
from defenses.median import Median
from defenses.types import RowRule, SumRule


def test_a_rule_says_by_its_shape_what_it_needs_to_see():
    assert isinstance(Mean(), SumRule)
    assert isinstance(Median(), RowRule)
    assert not isinstance(Median(), SumRule)
    assert Mean().sensitivity("add/remove") == math.inf, "a mean bounds nothing by itself"


def test_the_mean_by_its_sum_form():
    rows, center = torch.randn(7, 5), torch.zeros(5)
    rule = Mean()
    result = rule.step(center, rule.terms(rows, center).sum(0) / 7)
    torch.testing.assert_close(result, rows.mean(0))


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_the_median_against_numpy(n):
    rows = torch.randn(n, 11)
    before = rows.clone()
    expected = torch.from_numpy(__import__("numpy").median(rows.numpy(), axis=0))
    torch.testing.assert_close(Median()(rows, 0), expected)
    assert torch.equal(rows, before)


def test_the_median_holds_below_half_and_fails_beyond():
    honest = torch.randn(11, 3)
    hostile = torch.full((10, 3), 1e30)
    assert Median()(torch.cat([honest, hostile]), 10).abs().max() < 10
    assert Median()(torch.cat([honest, hostile, hostile]), 20).abs().max() > 1e20


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_rows_that_are_not_finite_do_not_count(bad):
    rows = torch.randn(5, 3)
    spoiled = torch.cat([rows, torch.full((1, 3), bad)])
    torch.testing.assert_close(Median()(spoiled, 1), Median()(rows, 0))
    assert (Median()(torch.full((2, 3), bad), 2) == 0).all()
    assert Median()(torch.empty(0, 3), 0).tolist() == [0.0, 0.0, 0.0]
