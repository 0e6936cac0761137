"""What noise will leave of a measure is known before anybody is asked."""

import numpy as np
import pytest
import torch
from lanes import every_case
from scorings import DIGITS, MEASURES, SCORINGS, SUITED, population

from privfed.core.parts import find
from privfed.metrics.measure_row import MeasureRow, half_widths


def test_500_clients_know_the_accuracy_to_two_points():
    row = MeasureRow.of([MEASURES["accuracy"]], DIGITS)
    assert half_widths(row, 500, 5.4)["accuracy"] == pytest.approx(0.019, abs=0.001)
    assert half_widths(row, 5000, 5.4)["accuracy"] == pytest.approx(0.0019, abs=0.0001)


@every_case("kind", SUITED)
def test_a_width_is_near_what_comes(kind):
    row = MeasureRow.of([MEASURES[name] for name in SUITED[kind]], SCORINGS[kind])
    expected = half_widths(row, 2000, 5.0)
    total = population(kind, 2000, most=6).rows(row).sum(0)
    rng, widths = np.random.default_rng(4), {title: [] for title in expected}
    for _ in range(20):
        noised = total + torch.from_numpy(rng.normal(0, 5, row.length))
        for title, each in row.estimates(noised, 5.0, 1.0)[""].items():
            widths[title].append((each.high - each.low) / 2)
    for title, width in expected.items():
        assert np.mean(widths[title]) / 2.5 < width < 2.5 * np.mean(widths[title]), title


def test_own_measures_are_parts_like_any_other():
    measure = find("measure", "toys:Sureness", "evaluation.measures")()
    row = MeasureRow.of([measure, MEASURES["accuracy"]], DIGITS)
    crowd = population("digits", 40)
    each = row.estimates(crowd.rows(row).sum(0), 0.0, 1.0)[""]["sureness"]
    sizes = np.diff(crowd.offsets)
    sure = crowd.outputs.double().softmax(-1).amax(-1).numpy()
    expected = np.average(sure, weights=1 / np.repeat(sizes, sizes))
    assert each.value == pytest.approx(expected)
    assert half_widths(row, 500, 5.4).keys() == {"sureness", "accuracy"}
