"""Published tolerance and robustness: held where stated, and no further."""

import itertools

import numpy as np
import pytest
import torch
from contracts.registered import example
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import every_case, mostly_slow
from rules import NNM, PUBLISHED, ROBUST

from defenses.by_sums.centered_clipping import CenteredClipping
from defenses.by_sums.mean import Mean
from defenses.by_sums.norm_bound import NormBound
from defenses.by_sums.sign_majority import SignMajority
from defenses.on_rows.dnc import DivideAndConquer
from defenses.on_rows.trimmed_mean import TrimmedMean
from defenses.weighing import Composed


@every_case("name", [name for name in ROBUST if "clipping" not in name])
def test_a_majority_is_not_tolerated(name):
    rule, n = ROBUST[name], 11
    honest = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    rows = torch.cat([torch.full((n - 2, 5), 100.0), honest])
    assert rule(rows, rule.most(n)).norm() > 50


def test_beyond_its_tolerance_the_trimmed_mean_breaks():
    honest = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    rows = torch.cat([torch.full((3, 2), 1e6), honest])
    assert TrimmedMean()(rows, 3).norm() < 10
    assert TrimmedMean()(rows, 2).norm() > 1e4, "one of the three is left in"


def test_one_row_moves_a_mean_anywhere_and_bounded_rules_by_their_radius():
    honest = torch.zeros(9, 3)
    for far in (1e3, 1e9, 1e14):
        rows = torch.cat([honest, torch.full((1, 3), far)])
        assert Mean().on_rows(rows).norm() > far / 10
        for rule in (NormBound(radius=0.5), CenteredClipping(radius=0.5)):
            assert float(rule.on_rows(rows).norm()) <= 0.5 / 10 * (1 + 1e-5)
        votes = torch.cat([torch.ones(5, 3), torch.full((4, 3), -far)])
        assert SignMajority(move=0.1).on_rows(votes).tolist() == pytest.approx([0.1] * 3)


def test_dnc_removes_those_who_agree_and_is_said_to_miss_those_who_do_not():
    honest = torch.randn(9, 4, generator=torch.Generator().manual_seed(0)) / 10
    together = torch.cat([honest, torch.full((2, 4), 50.0)])
    assert DivideAndConquer()(together, 2).norm() < 1
    apart = torch.zeros(2, 4)
    apart[0, 0], apart[1, 1] = 1e4, 50.0
    assert DivideAndConquer()(torch.cat([honest, apart]), 2).norm() > 1


def excess(rule, rows, byzantine, count):
    """|F - mean|^2 and the variance, of `rows` `[n - f, d]` and `byzantine` ones `[f, d]`."""
    every = torch.from_numpy(np.concatenate([rows, byzantine]))
    mean = rows.mean(0)
    away = ((rule(every, count).numpy() - mean) ** 2).sum()
    return away, ((rows - mean) ** 2).sum(1).mean()


MADE = {
    "nnm": (NNM, lambda kappa, n, f: 8 * f / (n - f) * (kappa + 1)),
    "arc": (example("before", "arc"), lambda kappa, n, f: kappa + 2 * f / (n - 2 * f)),
}
"""What robustness a pre-aggregator makes of a rule's, as published."""


@pytest.mark.parametrize(
    ("name", "before"),
    mostly_slow(
        itertools.product(PUBLISHED, ["", *MADE]),
        *itertools.product(PUBLISHED, [""]),
        *itertools.product([*PUBLISHED][:1], MADE),
    ),
)
@settings(max_examples=60)
@given(data=st.data())
def test_no_case_exceeds_the_published_robustness(name, before, data):
    """|F - m|^2 <= kappa / |S| sum |x_k - m|^2 (the honest as S), for searched hostile rows."""
    part, made = MADE.get(before, (None, lambda kappa, n, f: kappa))
    base = PUBLISHED[name].part
    rule = Composed(before=(part,), rule=base) if part else base
    f = data.draw(st.integers(1, 3))
    n = data.draw(st.integers(2 * f + 3, 12))
    d = data.draw(st.integers(1, 3))
    number = st.floats(-10, 10, width=32).map(lambda value: round(value, 2))
    vector = st.lists(number, min_size=d, max_size=d)
    honest = np.array(data.draw(st.lists(vector, min_size=n - f, max_size=n - f)))
    byzantine = np.array(data.draw(st.lists(vector, min_size=f, max_size=f)))
    away, variance = excess(rule, honest, byzantine, f)
    kappa = made(base.robustness(n, f), n, f)
    smoothing = getattr(base, "_smoothing", 0.0) * f / (n - f)  # the bound is for smoothing -> 0
    most = kappa * variance * (1 + 1e-9) + 1e-4 * (1 + variance**0.5)
    assert away <= (most**0.5 + smoothing) ** 2


@every_case("name", ["caf", "smea"])
@every_case("place", [0.5, 2.0, 6.0, 40.0])
@every_case("n, f", [(9, 1), (9, 4), (20, 3), (12, 5)])
def test_filters_are_robust_by_the_variance_in_one_direction(name, place, n, f):
    """In 30 dimensions, the trace of the honest covariance is many times its largest eigenvalue."""
    rng = np.random.default_rng((n, f))
    honest, way = rng.normal(size=(n - f, 30)), rng.normal(size=30)
    byzantine = place * way / np.linalg.norm(way) + 0.1 * rng.normal(size=(f, 30))
    away, _ = excess(PUBLISHED[name], honest, byzantine, f)
    largest = np.linalg.eigvalsh(np.cov(honest.T, bias=True))[-1]
    assert away <= PUBLISHED[name].robustness(n, f) * largest


def test_the_search_would_notice_a_rule_that_is_not_robust():
    honest, byzantine = np.zeros((8, 1)), np.full((3, 1), 10.0)
    honest[0] = 0.1
    away, variance = excess(Composed(before=(), rule=Mean()), honest, byzantine, 0)
    assert away > 100 * TrimmedMean().robustness(11, 3) * variance


def test_a_mean_claims_no_robustness():
    assert Mean().robustness(10, 1) == float("inf")
