"""Evaluations as rows: public ones alone by default, and each round once after any crash."""

import csv
import json

from lanes import every_case
from small import small, trained

from privfed.run.train import resume
from privfed.run.watch.files import ColumnsFile

WATCH = 'run.watch=["csv"]'
OPTED = ("run.randomness=seeded", "run.simulation_metrics=true", "run.checkpoint_every=4")


def rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_rows_are_those_of_the_metrics(tmp_path):
    trained(tmp_path / "run", WATCH)
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    expected = [{k: v for k, v in json.loads(line).items() if k != "format"} for line in lines]
    read = rows(tmp_path / "run/report/metrics.csv")
    assert [{name: float(value) for name, value in row.items()} for row in read] == expected
    assert not (tmp_path / "run/report/simulation.csv").exists()


def test_what_no_epsilon_covers_has_a_file_of_its_own(tmp_path):
    trained(tmp_path / "run", WATCH, *OPTED)
    public, beside = (
        rows(tmp_path / f"run/report/{name}.csv") for name in ("metrics", "simulation")
    )
    assert set(public[0]) == {"round", "accuracy", "loss", "nominal_epsilon"}  # a simulation
    assert {"round", "cohort", "median_norm"} <= set(beside[0])
    assert len(public) == len(beside) == 4


@every_case("torn", ["8,0.5,", "99,0.5,0.1,3\n", "nonsense\n", "\x00\n"])
def test_a_resume_repeats_no_row_and_removes_what_a_crash_left(tmp_path, torn):
    trained(tmp_path / "run", WATCH)
    path = tmp_path / "run/report/metrics.csv"
    with path.open("a") as file:
        file.write(torn)
    resume(tmp_path / "run", lambda config: config.with_run(rounds=10))
    assert [row["round"] for row in rows(path)] == ["2", "4", "6", "7", "8", "10"]


def test_a_name_that_comes_later_is_a_column_that_was_empty_before(tmp_path):
    file = ColumnsFile(tmp_path / "report/a.csv")
    file.append(1, {"loss": 2.0})
    file.append(2, {"loss": None, "clip": 0.5})
    file.append(3, {"clip": float("inf")})
    assert rows(file.path) == [
        {"round": "1", "loss": "2.0", "clip": ""},
        {"round": "2", "loss": "", "clip": "0.5"},
        {"round": "3", "loss": "", "clip": "inf"},
    ]


def test_hostile_names_stay_in_their_cells(tmp_path):
    file = ColumnsFile(tmp_path / "a.csv")
    file.append(1, {'a,"b\n\x1b[31m': 1.0, "c": 2.0})
    file.append(2, {'a,"b\n\x1b[31m': 3.0, "c": 4.0})
    assert "\x1b" not in file.path.read_text()
    again = ColumnsFile(file.path)
    again.go_on(1)
    assert [row["c"] for row in rows(file.path)] == ["2.0"]


def test_a_run_that_never_evaluated_leaves_no_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("round,loss\n5,1.0\n")
    ColumnsFile(path).go_on(0)
    assert not path.exists()
    assert small(WATCH).run.watch == ["csv"]
