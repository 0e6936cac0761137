"""The study of asynchronous rounds: its runs at small size, and the table of its page."""

from pathlib import Path

import pytest

from experiments.asynchronous.study import HERE, METHODS, results, table
from experiments.less_noise.tables import read

PAGE = Path(__file__).parents[2] / "docs/how-to/asynchronous_rounds.md"


def test_the_page_shows_the_table_of_the_results():
    assert table(read(HERE / "results.csv")) in PAGE.read_text("utf-8")


@pytest.mark.slow
def test_a_synchronous_round_lasts_as_long_as_ten_ticks():
    small = ("run.rounds=20", "run.evaluate_every=10", "data.clients=100")
    rows = [each for each in results(1, *small) if each.mechanism == "banded"]
    assert [each.method for each in rows] == [*METHODS]
    assert all(0.05 < each.accuracy <= 1 for each in rows)
    minutes = {each.method: each.minutes for each in rows}
    assert minutes["synchronous"] in (100, 200, float("inf"))
    assert minutes["ticks"] in (10, 20, float("inf"))
