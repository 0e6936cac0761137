"""The live line of a run: all of it in a wide terminal, and the main things in a narrow one."""

from dataclasses import replace

import pytest
from lanes import FULL, every_case
from rich.cells import cell_len

from privfed.report.console import sparkline, written
from privfed.report.progress import Pace, Status, status_line

HISTORY = [0.1, 0.3, 0.5, 0.7, 0.8, 0.85, 0.87, 0.9, 0.9123]
MIDDLE = Status(48, 120, 45, "accuracy", "91.23%", "ε 2.4123 of 4", HISTORY, 41.23, 1.2)


def line(status, width, encoding="utf-8"):
    return status_line(status, width, lambda text: written(text, encoding)).plain


def test_a_wide_terminal_has_all_of_it_in_words():
    assert line(MIDDLE, 200) == (
        "round 48/120  ━━━━━━━━━━━━━━━━────────────────────────  ▁▂▄▆▇████  "
        "at 45: accuracy 91.23%  ε 2.4123 of 4  41.2 rounds/s  0:02 left"
    )


def test_a_narrow_one_has_the_same_facts():
    assert line(MIDDLE, 60) == "48/120 ▁▂▄▆▇████ at 45: 91.23% ε 2.4123 of 4 41.2/s 0:02"


@FULL
@every_case("encoding", ["utf-8", "latin-1", "ascii", "cp1252"])
@every_case(
    "status",
    [
        MIDDLE,
        Status(0, 120),
        replace(MIDDLE, round=120, at=120),
        replace(MIDDLE, round=9_000, rounds=120_000, at=9_000, rate=0.003),
        replace(MIDDLE, name="a measure of one's own with a long name"),
        replace(MIDDLE, history=HISTORY * 50),
    ],
)
def test_it_never_has_more_columns_than_there_are(status, encoding, full):
    for width in range(14, 220) if full else (*range(14, 60), *range(60, 220, 9)):
        written_out = line(status, width, encoding)
        assert cell_len(written(written_out, encoding)) <= width
        assert f"{status.round}/{status.rounds}" in written_out


def test_wider_terminals_show_no_less():
    for fact in ("48/120", "91.23%", "ε 2.4123 of 4", "0:02", "█", "41.2", "accuracy", "━"):
        there = [fact in line(MIDDLE, width) for width in range(10, 200)]
        assert there == sorted(there), fact
    longer = replace(MIDDLE, round=1190, rounds=6000, at=1180)
    assert all(fact in line(longer, 60) for fact in ("█", "ε 2.4123 of 4", "41.2/s", "1:57"))


def test_where_letters_are_missing_the_course_is_still_seen():
    assert written(sparkline([1, 2, 3, 4, 5, 6, 7, 8], 8), "ascii") == "_.:-=+*#"
    assert "epsilon 2.4123 of 4" in written(line(MIDDLE, 80, "ascii"), "ascii")


def test_slow_runs_and_long_ones_are_said_in_words():
    slow = replace(MIDDLE, rounds=12_000, rate=0.25)
    assert line(slow, 200).endswith("4 s a round  13 h left")
    ended = replace(MIDDLE, round=120, at=120)
    assert line(ended, 200).endswith("ε 2.4123 of 4  in 1.2 s")


@every_case(
    ("values", "width", "expected"),
    [
        ([], 8, ""),
        ([0.5], 8, "▅"),
        ([1, 1, 1], 8, "▅▅▅"),
        ([0, float("nan"), 1, float("inf")], 8, "▁ █ "),
        (range(100), 4, "▂▄▆█"),
        ([3, 2, 1], 2, "█▁"),
    ],
)
def test_a_sparkline_goes_from_the_least_to_the_greatest(values, width, expected):
    assert sparkline(values, width) == expected


def test_the_pace_is_that_of_late():
    now = [0.0]
    pace = Pace(lambda: now[0])
    pace.at(10)
    assert pace.rate is None
    for round in range(11, 40):
        now[0] += 1.0
        pace.at(round)
    assert pace.rate == pytest.approx(1.0)
    for round in range(40, 440):
        now[0] += 0.1
        pace.at(round)
    assert pace.rate == pytest.approx(10.0, rel=0.05)
    assert pace.elapsed == pytest.approx(69.0)
