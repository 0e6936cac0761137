"""Nobody's vector or row is longer than 1, whatever models answer and labels are."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import every_case
from scorings import MEASURES, PAIRS, SCORINGS, SUITED, labels, outputs_shape

from privfed.metrics.measure import within_unit
from privfed.metrics.measure_row import MeasureRow

ANY = st.one_of(
    st.floats(-20, 20, width=32),
    st.sampled_from([float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e-40, 0.0]),
)
ROUNDING = 1 + 1e-9


@st.composite
def answers(draw, kind, most=12):
    n = draw(st.integers(1, most))
    palette = draw(st.lists(ANY, min_size=1, max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    outputs = torch.from_numpy(rng.choice(palette, outputs_shape(kind, n))).float()
    return outputs, labels(kind, n, rng), rng


@pytest.mark.parametrize("kind, name", PAIRS)
@settings(max_examples=40)
@given(data=st.data())
def test_no_example_says_more_than_one(kind, name, data):
    outputs, y, _ = data.draw(answers(kind))
    vectors = MEASURES[name].vectors(outputs, y, SCORINGS[kind])
    assert vectors.shape == (len(y), MEASURES[name].columns(SCORINGS[kind]))
    assert bool((vectors.norm(dim=1) <= ROUNDING).all())  # a NaN is not


@pytest.mark.parametrize("kind", SUITED)
@settings(max_examples=40)
@given(data=st.data())
def test_no_client_weighs_more_than_one(kind, data):
    outputs, y, rng = data.draw(answers(kind))
    names = data.draw(st.lists(st.sampled_from(SUITED[kind]), min_size=1, unique=True))
    groups = data.draw(st.sampled_from([(), ("f", "m"), ("a", "b", "c")]))
    row = MeasureRow.of([MEASURES[name] for name in names], SCORINGS[kind], groups)
    offsets = np.sort(rng.integers(0, len(y) + 1, 5))
    offsets = np.concatenate([[0], offsets, [len(y)]])
    places = rng.integers(0, len(groups), len(y)) if groups else None
    rows = row.of_clients(row.of_examples(outputs, y), offsets, places)
    assert rows.shape == (6, row.length)
    assert bool((rows.norm(dim=1) <= ROUNDING).all())
    assert not rows[np.diff(offsets) == 0].any()


@every_case("kind, name", PAIRS)
def test_the_bound_is_tight(kind, name):
    """Somebody's row is as long as it may be: the noise is not for a bound that nobody reaches."""
    row = MeasureRow.of([MEASURES[name]], SCORINGS[kind])
    y = labels(kind, 1, np.random.default_rng(3))
    outputs = torch.full(outputs_shape(kind, 1), float("nan"))
    rows = row.of_clients(row.of_examples(outputs, y), np.array([0, 1]))
    assert float(rows.norm()) == pytest.approx(1, abs=0.002)


@every_case("kind, name", PAIRS)
def test_answers_that_are_no_numbers_are_the_worst(kind, name):
    measure, scoring = MEASURES[name], SCORINGS[kind]
    row = MeasureRow.of([measure], scoring)
    y = labels(kind, 60, np.random.default_rng(1))
    outputs = torch.full(outputs_shape(kind, 60), float("nan"))
    rows = row.of_clients(row.of_examples(outputs, y), np.arange(61))
    estimate = row.estimates(rows.sum(0), 0.0, 1.0)[""][measure.title(scoring)]
    worst = {"loss": measure.bounds(scoring)[1]} if name == "loss" else {}
    worst |= {"calibration": 1.0, "mean_absolute_error": 100.0}
    assert estimate.value == pytest.approx(worst.get(name, 0.0), abs=1e-9)


def test_longer_vectors_are_shortened():
    vectors = [[3.0, 4.0], [0.3, 0.4], [float("nan"), 0.1], [1e200, 0.0], [0.0, 0.0]]
    short = within_unit(torch.tensor(vectors, dtype=torch.float64))
    expected = torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(short, expected.double(), atol=1e-7, rtol=0)
    huge = torch.tensor([[1e200, 1e200]], dtype=torch.float64)
    assert float(within_unit(huge).norm()) == pytest.approx(1)


@pytest.mark.parametrize("name", ["accuracy", "loss"])
def test_a_client_counts_once_however_many_examples_it_has(name):
    """Sensitivity: a client of many examples moves the sum as one of a few does."""
    row = MeasureRow.of([MEASURES[name]], SCORINGS["digits"])
    y = torch.zeros(100, dtype=torch.int64)
    scored = row.of_examples(torch.eye(10)[y] * 9, y)
    few, many = (row.of_clients(scored[:n], np.array([0, n])) for n in (1, 100))
    torch.testing.assert_close(few, many)
