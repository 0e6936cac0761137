"""The study of private tuning: its runs spend what it says, and its figures follow from them."""

import csv

import numpy as np
import pytest

from experiments.private_tuning import study


def table():
    with (study.Path(study.__file__).with_name("results.csv")).open(encoding="utf-8") as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def test_every_rate_was_trained_at_both_noises_within_the_budget():
    rows = table()
    assert len(rows) == 2 * len(study.RATES) * len(study.SEEDS)
    assert {(row["seed"], row["rate"], row["chosen"]) for row in rows} == {
        (seed, rate, chosen) for seed in study.SEEDS for rate in study.RATES for chosen in (0, 1)
    }
    assert all(3.99 < row["epsilon"] <= study.EPSILON for row in rows)
    quiet, loud = (
        {row["noise_multiplier"] for row in rows if row["chosen"] == chosen} for chosen in (0, 1)
    )
    assert max(quiet) < 0.6 * min(loud)


@pytest.mark.slow
def test_the_figures_follow_from_the_table():
    figures = study.summary(table(), np.random.default_rng(1))
    assert figures["regret"] == pytest.approx(0.45, abs=0.05)
    assert figures["price"] == pytest.approx(1.73, abs=0.05)
    assert figures["any"] == pytest.approx(3.05, abs=0.01)
    assert figures["within_1"] == pytest.approx(0.926, abs=0.01)
