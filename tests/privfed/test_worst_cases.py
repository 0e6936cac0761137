"""Worst cases of a grid: found, averaged over seeds, and counted."""

import csv

import pytest

from experiments.worst_cases import attacked, cases, spread, table, tally

MILD = {"flip": (0.90, 0.92), "shift": (0.91, 0.95)}
HARSH = {"flip": (0.60, 0.80), "shift": (0.10, 0.10)}
TIED = {"flip": (0.50, 0.70), "shift": (0.58, 0.64)}


@pytest.fixture
def by_case(tmp_path):
    """Three cases, two attacks, two seeds; a cell that failed, and one of other data."""
    path = tmp_path / "grid.csv"
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["rule", "part", "attack", "seed", "status", "accuracy", "data"])
        for (rule, part), attacks in {
            ("a", "0.1"): MILD,
            ("a", "0.4"): HARSH,
            ("b", "0.1"): TIED,
        }.items():
            for attack, accuracies in attacks.items():
                for seed, accuracy in enumerate(accuracies):
                    out.writerow([rule, part, attack, seed, "done", accuracy, "x"])
        out.writerow(["a", "0.1", "flip", 9, "failed", "", "x"])
        out.writerow(["a", "0.1", "flip", 9, "done", 0.0, "y"])
    return cases(path, ["rule", "part"], "attack", {"data": "x"})


def test_the_worst_attack_is_that_of_the_least_mean(by_case):
    assert table(by_case, rows=1).splitlines()[2:] == [
        "| a | 91.0 ± 1.4 | 10.0 ± 0.0 |",
        "| b | 60.0 ± 14.1 |  |",
    ]


def test_attacks_are_counted_and_what_is_within_the_spread_is_not_clear(by_case):
    lines = tally(by_case).splitlines()
    assert lines[0].startswith("3 cases")
    assert sorted(lines[1:]) == ["  flip: 2 (1)", "  shift: 1 (1)"]


def test_the_spread_counts_pairs_of_seeds(by_case):
    assert spread(by_case).startswith("2 of 6 pairs of seeds differ by over ten points")


def test_a_grid_of_one_seed_has_no_spread_and_no_deviation():
    single = {("a",): {"flip": {"1": 90.0}, "shift": {"1": 80.0}}}
    assert spread(single) == ""
    assert table(single, rows=1).splitlines()[-1] == "| a | 80.0 |"


def test_cases_in_which_nobody_attacks_are_those_without_attackers():
    of_zeros = {("0", "0.2"): {}, ("0", "0"): {}, ("1", "0.0"): {}}
    assert [*attacked(of_zeros, ["aggregation.byzantine", "attack.fraction"])] == [("0", "0.2")]


def test_a_run_that_diverged_is_never_right(tmp_path):
    """Left out, an attack that breaks training would look harmless."""
    path = tmp_path / "grid.csv"
    path.write_text(
        "rule,attack,seed,status,reason,accuracy\n"
        "mean,flip,1,done,,0.9\n"
        'mean,adaptive,1,refused,"training diverged; lower client.lr",\n'
        "mean,shift,1,refused,no such attack,\n"
    )
    by_case = cases(path, ["rule"], "attack", {})
    assert by_case[("mean",)] == {"flip": {"1": 90.0}, "adaptive": {"1": 0.0}}
