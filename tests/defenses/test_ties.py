"""Rows that coincide, as those of most attackers do: every rule against its definition by search.

Where several answers fit a definition (equal scores of different rows), any of them is right, and
no other; where one does, the order of rows changes nothing. Numbers are small and whole, so that
ties are exact.
"""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import every_case
from rules import NNM, ROWS

from defenses.on_rows.bulyan import Bulyan
from defenses.on_rows.krum import Krum, MultiKrum
from defenses.on_rows.mda import MinimumDiameter
from defenses.on_rows.mean_around_median import MeanAroundMedian, mean_nearest
from defenses.on_rows.median import Median
from defenses.on_rows.smea import SmallestEigenvalue
from defenses.on_rows.trimmed_mean import TrimmedMean
from defenses.weighing import mixtures

ANY_ORDER = [
    "trimmed_mean",
    "median",
    "mean_around_median",
    "geometric_median",
    "norm_bound",
    "foolsgold",
    "flame",
    "fldetector",
    "lasa",
]
"""Rules that never choose among rows that fit alike."""
WITHIN = {"trimmed_mean": TrimmedMean(), "median": Median()}
"""Rules whose every coordinate lies within the honest ones."""


@st.composite
def tied(draw, least=3, most=9, quorum=lambda n: (n - 1) // 2):
    """Rows `[n, d]` on a small grid, the first f of them copies of one; and f."""
    n = draw(st.integers(least, most))
    d, f = draw(st.integers(1, 3)), draw(st.integers(0, quorum(n)))
    row = st.lists(st.integers(-2, 2), min_size=d, max_size=d)
    byzantine = [draw(row)] * f
    return np.array(byzantine + [draw(row) for _ in range(n - f)], dtype=float), f


def given_ties(**sizes):
    return lambda test: settings(max_examples=40)(given(case=tied(**sizes))(test))


def aggregate(rule, rows, f):
    return rule(torch.from_numpy(rows), f).numpy()


def squared(rows):
    return ((rows[:, None] - rows[None]) ** 2).sum(-1)


def least(scores, count):
    """Every choice of `count` places with the least scores; ties are broken in every way."""
    edge = sorted(scores)[count - 1]
    sure = [place for place, score in enumerate(scores) if score < edge]
    level = [place for place, score in enumerate(scores) if score == edge]
    return [[*sure, *more] for more in itertools.combinations(level, count - len(sure))]


def krum(rows, f):
    others = np.sort(squared(rows), axis=1)[:, 1:]
    return others[:, : max(1, len(rows) - f - 2)].sum(1)


def nearest_to_median(values, count):
    median = np.median(values)
    return np.mean(sorted(values, key=lambda value: (abs(value - median), value))[:count])


def picked_by_bulyan(rows, f):
    """Every multiset of rows that Krum may pick one by one."""
    states = {(tuple(map(tuple, sorted(rows.tolist()))), ())}
    for _ in range(len(rows) - 2 * f):
        after = set()
        for left, picked in states:
            for (place,) in least(krum(np.array(left), f), 1):
                taken = tuple(sorted((*picked, left[place])))
                after.add((left[:place] + left[place + 1 :], taken))
        states = after
    return {picked for _, picked in states}


def answers(rule, rows, f):
    """Every aggregate that fits the definition of a rule that chooses rows."""
    n = len(rows)
    if isinstance(rule, MultiKrum):
        return [rows[best].mean(0) for best in least(krum(rows, f), n - f)]
    if isinstance(rule, Krum):
        return [rows[best].mean(0) for best in least(krum(rows, f), 1)]
    if isinstance(rule, Bulyan):
        return [
            [nearest_to_median(values, n - 4 * f) for values in zip(*picked, strict=True)]
            for picked in picked_by_bulyan(rows, f)
        ]
    subsets = [list(s) for s in itertools.combinations(range(n), n - f)]
    if isinstance(rule, SmallestEigenvalue):
        leading = [np.linalg.eigvalsh(scatter(rows[s]))[-1].round(9) for s in subsets]
        return [rows[subsets[place]].mean(0) for (place,) in least(leading, 1)]
    apart = squared(rows)
    widths = [apart[np.ix_(s, s)].max() for s in subsets]
    return [rows[subsets[place]].mean(0) for (place,) in least(widths, 1)]


def scatter(rows):
    about = rows - rows.mean(0)
    return about.T @ about


def fits(value, choices):
    return any(np.allclose(value, choice, atol=1e-9) for choice in choices)


@pytest.mark.parametrize("name", ANY_ORDER)
@given_ties()
def test_the_order_of_tied_rows_changes_nothing(name, case):
    rows, f = case
    expected = aggregate(ROWS[name], rows, f)
    for order in (slice(None, None, -1), np.argsort(rows[:, 0], kind="stable")):
        np.testing.assert_allclose(
            aggregate(ROWS[name], rows[order].copy(), f), expected, atol=2e-5
        )


@pytest.mark.parametrize("name", WITHIN)
@given_ties()
def test_the_aggregate_lies_within_the_honest_rows(name, case):
    rows, f = case
    value, honest = aggregate(WITHIN[name], rows, f), rows[f:]
    assert (honest.min(0) - 1e-9 <= value).all()
    assert (value <= honest.max(0) + 1e-9).all()


@given_ties(most=12)
def test_of_tied_values_the_nearest_to_the_median_are_averaged(case):
    rows, f = case
    expected = [nearest_to_median(values, len(rows) - f) for values in rows.T]
    np.testing.assert_allclose(aggregate(MeanAroundMedian(), rows, f), expected, atol=1e-9)


@every_case(
    "values, count, expected",
    [
        ([-1, -1, -1, 0, 0, 0, 1], 5, -0.4),
        ([-1, 0, 0, 0, 1, 1, 1], 5, 0.0),
        ([0, 0, 0, 0], 2, 0.0),
        ([-3, -3, 1, 3], 4, -0.5),
        ([5], 1, 5.0),
    ],
)
def test_copies_of_a_value_crowd_out_no_nearer_one(values, count, expected):
    mean = mean_nearest(torch.tensor([values], dtype=torch.float64), count)
    assert mean.tolist() == pytest.approx([expected])


@pytest.mark.parametrize(
    "rule",
    [Krum(), MultiKrum(), MinimumDiameter(), SmallestEigenvalue()],
    ids=lambda rule: type(rule).__name__,
)
@given_ties(quorum=lambda n: (n - 3) // 2)
def test_rules_that_choose_rows_break_ties_within_their_definition(rule, case):
    rows, f = case
    assert fits(aggregate(rule, rows, f), answers(rule, rows, f))


@given_ties(least=7, most=11, quorum=lambda n: (n - 3) // 4)
def test_bulyan_breaks_ties_within_its_definition(case):
    rows, f = case
    assert fits(aggregate(Bulyan(), rows, f), answers(Bulyan(), rows, f))


@given_ties()
def test_mixing_takes_the_nearest_of_tied_rows(case):
    rows, f = case
    mixed = mixtures(torch.from_numpy(rows), f, (NNM,)).numpy()
    for place, mixture in enumerate(mixed):
        choices = least(squared(rows)[place], len(rows) - f)
        assert fits(mixture, [rows[near].mean(0) for near in choices])
        equal = mixed[(rows == rows[place]).all(1).argmax()]
        np.testing.assert_allclose(mixture, equal, atol=1e-12)


@given_ties()
def test_dnc_leaves_out_those_that_stand_out_most(case):
    rows, f = case
    about = rows - rows.mean(0)
    _, sizes, directions = np.linalg.svd(about)
    if sizes[0] < 1e-9 or (len(sizes) > 1 and sizes[0] - sizes[1] < 1e-6):
        return  # no direction is the largest
    scores = ((about @ directions[0]) ** 2).round(9)
    choices = [rows[inliers].mean(0) for inliers in least(scores, len(rows) - f)]
    assert fits(aggregate(ROWS["dnc"], rows, f), choices)


def test_the_search_refutes_a_rule_that_keeps_all_copies():
    """The windows whose farther end is nearest to the median, lowest first, are not the nearest."""
    values = np.array([-1.0, -1, -1, 0, 0, 0, 1])
    window = values[:5].mean()
    assert window == pytest.approx(-0.6)
    assert nearest_to_median(values, 5) == pytest.approx(-0.4)
    assert not fits([window], [nearest_to_median(values, 5)])


def test_who_lies_just_a_deviation_away_is_left_out_in_any_order():
    """Deviations of the same numbers round otherwise in another order."""
    rows = np.array([[0, 0], [0, 0], [0, 0], [0, 1], [1, 1], [1, -1]], dtype=float)
    first, *others = (
        aggregate(ROWS["lasa"], rows[list(order)], 2) for order in itertools.permutations(range(6))
    )
    np.testing.assert_allclose(others, [first] * len(others), atol=1e-12)
