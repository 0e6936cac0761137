"""Rows that several tables share say the same thing in all of them."""

import math

from lanes import every_case

from accounting.guarantee import Guarantee
from accounting.statement import each_epsilon
from privfed.report.tables import (
    counted,
    disjoint_row,
    further_guarantee_rows,
    start_row,
)

BOUND = Guarantee(1.5, 1e-5, "client", "zero-out", "full", 3, "tightest", {"rdp": 1.5})


def test_what_stands_beside_a_headline_is_said_where_there_is_any():
    assert further_guarantee_rows("server", None, None) == {}
    assert list(further_guarantee_rows("server", BOUND, None)) == ["examples"]
    pairs = further_guarantee_rows("readers", BOUND, BOUND)
    assert list(pairs) == ["adversary", "second adversary", "examples"]
    assert pairs["adversary"].startswith("readers of the released aggregates")
    assert "against a server" in pairs["second adversary"]
    assert "for one example of any one silo" in pairs["examples"]


def test_a_fresh_start_and_no_disjoint_runs_are_not_mentioned():
    assert start_row(BOUND) == disjoint_row([]) == {}
    assert start_row(BOUND, "start.pt") == {
        "start": "start.pt; the runs that trained it are counted"
    }
    assert "runs/a, runs/b" in disjoint_row(["runs/a", "runs/b"])["disjoint"]


@every_case("count, words", [(0, "0 processes"), (1, "1 process"), (2, "2 processes")])
def test_things_are_counted(count, words):
    assert counted(count, "process", "es") == words


def test_an_epsilon_that_no_accountant_has_is_said_to_be_missing():
    shown = each_epsilon({"rdp": 1.00001, "pld": None, "other": math.inf})
    assert shown == "rdp 1.0001, pld not available for this noise, other ∞"
