"""Rules by sums: their terms are bounded, and their passes give what the rows give."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import every_case

from defenses.by_sums.centered_clipping import CenteredClipping
from defenses.by_sums.geometric_median import GeometricMedian
from defenses.by_sums.mean import Mean
from defenses.by_sums.norm_bound import NormBound
from defenses.by_sums.pull import pull
from defenses.by_sums.sign_majority import SignMajority

BOUNDED = {
    "norm_bound": NormBound(),
    "centered_clipping": CenteredClipping(),
    "geometric_median": GeometricMedian(),
    "sign_majority": SignMajority(),
}


ADDED, REPLACED = 1, 2
"""By how many clips a client changes a sum of clipped rows."""


def cloud(n, d=5, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_mean_by_its_sum_form():
    rows, center = cloud(7), torch.zeros(5, dtype=torch.float64)
    rule = Mean()
    torch.testing.assert_close(rule.step(center, rule.terms(rows, center).mean(0)), rows.mean(0))


@every_case("smoothing", [0.05, 0.5, 5.0])
def test_passes_over_sums_reach_the_median_of_rows(smoothing):
    rows = torch.cat([cloud(9), 30 + cloud(3)])
    by_sums = GeometricMedian(passes=1000, smoothing=smoothing).on_rows(rows)
    torch.testing.assert_close(
        by_sums, GeometricMedian(smoothing=smoothing)(rows, 3), atol=1e-4, rtol=0
    )


def test_one_pass_is_the_smoothed_weiszfeld_step():
    rows, nu = cloud(6), 0.7
    beta = 1 / rows.norm(dim=1).clamp(min=nu)
    expected = (beta[:, None] * rows).sum(0) / beta.sum()
    aggregate = GeometricMedian(passes=1, smoothing=nu, balance=0.3).on_rows(rows)
    torch.testing.assert_close(aggregate, expected)


def test_centered_clipping_goes_on_from_its_center():
    rows, center = cloud(6), cloud(1, seed=5)[0]
    away = rows - center
    expected = center + (away * (1 / away.norm(dim=1, keepdim=True)).clamp(max=1.0)).mean(0)
    torch.testing.assert_close(CenteredClipping(radius=1.0).on_rows(rows, center), expected)
    twice = CenteredClipping(radius=1.0).on_rows(rows, expected)
    torch.testing.assert_close(CenteredClipping(radius=1.0, passes=2).on_rows(rows, center), twice)


def test_a_floor_keeps_a_noisy_share_from_blowing_up():
    rule = GeometricMedian().within(1.0)
    released = torch.tensor([1.0, -1.0, -5.0])
    assert rule.step(torch.zeros(2), released).tolist() == pytest.approx([10.0, -10.0])
    assert GeometricMedian(floor=0.5).within(1.0).step(torch.zeros(2), released).tolist() == [2, -2]


NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=32)


@pytest.mark.parametrize("name", BOUNDED)
@settings(max_examples=60)
@given(
    rows=st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=2, max_size=2),
    center=st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3),
    clip=st.floats(1e-3, 1e3),
)
def test_no_row_moves_the_sum_by_more_than_the_sensitivity(name, rows, center, clip):
    """One client more (or zeroed), and one replaced by any other; parts taken jointly."""
    rule = BOUNDED[name].within(clip)
    terms = rule.terms(torch.tensor(rows), torch.tensor(center)).double()
    assert terms.isfinite().all()
    first, second = terms
    slack = 1 + 1e-6
    assert float(first.norm()) <= rule.sensitivity(ADDED) * slack
    assert float((first - second).norm()) <= rule.sensitivity(REPLACED) * slack
    assert rule.sensitivity(ADDED) == pytest.approx(clip), "what noise is calibrated to"


def test_the_sensitivity_is_reached():
    """A smaller claim would be false: terms of that norm exist, for adding and for replacing."""
    rule = GeometricMedian().within(1.0)
    nu, balance = 1 / math.hypot(1, 0.5), 0.5
    center = torch.zeros(2, dtype=torch.float64)
    at_radius = torch.tensor([[nu, 0.0], [-nu, 0.0], [1e12, 0.0]], dtype=torch.float64)
    near, opposite, far = rule.terms(at_radius, center)
    assert float(near.norm()) == pytest.approx(rule.sensitivity(ADDED))
    assert rule.sensitivity(REPLACED) == pytest.approx(nu * math.sqrt(4 + balance**2))
    assert float((opposite - far).norm()) == pytest.approx(rule.sensitivity(REPLACED))


@every_case("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_pulls_nothing(bad):
    rows = torch.tensor([[1.0, bad], [3.0, 4.0]])
    ways, parts = pull(rows, torch.zeros(2), 1.0)
    assert ways[0].tolist() == [0.0, 0.0]
    assert parts.tolist() == [[0.0], [pytest.approx(0.2)]]


ROW_BY_ROW = {
    "norm_bound": NormBound(radius=0.5),
    "centered_clipping": CenteredClipping(radius=0.5),
    "centered_clipping, three passes": CenteredClipping(radius=0.5, passes=3),
}


def passed(rule, rows, center):
    """Where the passes of `rule` lead, each by the average of all terms."""
    center = torch.zeros_like(rows[0]) if center is None else center
    for _ in range(rule.passes):
        center = rule.step(center, rule.terms(rows, center).mean(0))
    return center


@every_case("name", ROW_BY_ROW)
@every_case("bad", [None, torch.nan, -torch.inf, 1e30, 1e15])
@every_case("away", [None, 0.0, 3.0])
def test_rows_in_one_place_give_what_their_terms_give(name, bad, away):
    rule, rows = ROW_BY_ROW[name], cloud(21, 40).float()
    rows[3], rows[4] = 0.0, rows[4] / 100
    if bad is not None:
        rows[5, 7] = bad
    center = None if away is None else away * cloud(1, 40, seed=3).float()[0]
    before = rows.clone()
    torch.testing.assert_close(rule.on_rows(rows, center), passed(rule, rows, center))
    torch.testing.assert_close(rows, before, equal_nan=True, rtol=0, atol=0)
    assert not rule.on_rows(rows.clone().requires_grad_(), center).requires_grad


@pytest.mark.parametrize("length", [1e3, 1e5])
def test_centered_clipping_is_exact_about_a_distant_center(length):
    """To within the rounding of the center itself, where inner products would lose the distances"""
    center = (length * torch.nn.functional.normalize(cloud(1, 500, seed=2), dim=1)[0]).float()
    rows = (center + 0.1 * cloud(15, 500)).float()
    rows[4:6] += 1e6
    wide = CenteredClipping(radius=2.0)
    expected = passed(wide, rows.double(), center.double())
    rounding = 2 * torch.finfo(torch.float32).eps * float(center.abs().max())
    assert float((expected - center).norm()) > 100 * rounding, "it moves by much more than that"
    torch.testing.assert_close(wide.on_rows(rows, center), expected.float(), atol=rounding, rtol=0)


def test_keys_are_given_once():
    with pytest.raises(ValueError, match="radius is missing"):
        NormBound().within(None)
    with pytest.raises(ValueError, match=r"it is privacy\.clip"):
        CenteredClipping(radius=1.0).within(0.5)
    with pytest.raises(ValueError, match=r"follows from privacy\.clip"):
        GeometricMedian(smoothing=1.0).within(0.5)
