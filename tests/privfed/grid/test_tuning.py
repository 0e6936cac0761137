"""Grids that compare methods, each with its own keys tuned on seeds of their own."""

import csv
import json

import pytest
from click.testing import CliRunner
from grids import BASE, in_process, table, write
from lanes import every_case

from privfed.cli.main import main
from privfed.grid import engine as experiment
from privfed.grid.cell_job import Job
from privfed.grid.cells import Cell, cells, tuned_cells
from privfed.grid.grid import Grid
from privfed.grid.load import load_grid
from privfed.grid.planned_guarantee import best_options

TUNED = """
base = "base.toml"
seeds = [0, 1]
[grid]
"client.epochs" = [1, 2]
[tune]
seeds = [7, 8]
by = "loss"
lower_is_better = true
[tune.over]
"client.lr" = [0.0, 0.1, 1.0]
[[method]]
name = "plain"
set = { "server.optimizer" = "fedavg" }
[[method]]
name = "prox"
set = { "server.optimizer" = "fedavg", "client.objective" = "fedprox" }
tune = { "client.mu" = [0.1, 0.2], "client.lr" = [0.5, 0.6] }
[[figure]]
name = "loss"
kind = "bars"
measure = "loss"
x = "client.epochs"
by = "method"
"""
FEWER = TUNED.replace("[1, 2]", "[1]")
FREE = BASE.replace("noise_multiplier = 2.0", 'mechanism = "none"') + "[server]\nlr = 1.0\n"


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(experiment, "work", in_process)


def run(path, *words):
    return CliRunner().invoke(main, ["experiment", str(path), "--jobs", "1", *map(str, words)])


def tuning(path):
    return list(csv.DictReader(path.with_name("grid.tuning.csv").read_text().splitlines()))


def test_each_method_is_tuned_over_its_own_options_on_other_seeds(tmp_path):
    path = write(tmp_path, TUNED, FREE)
    planned_cells = cells(path, load_grid(path))
    assert len(planned_cells) == 2 * (3 + 4) * 2
    assert {cell.seed for cell in planned_cells} == {7, 8}
    prox = [cell for cell in planned_cells if cell.values["method"] == "prox"]
    assert {(c.values["client.lr"], c.values["client.mu"]) for c in prox} == {
        (lr, mu) for lr in (0.5, 0.6) for mu in (0.1, 0.2)
    }
    assert all(cell.config.names["objective"] == "fedprox" for cell in prox)
    assert all(cell.config.objective.mu == cell.values["client.mu"] for cell in prox)


def test_the_best_mean_over_tuning_seeds_is_run_on_the_others(tmp_path, quick):
    path = write(tmp_path, TUNED, FREE)
    result = run(path, "--json")
    assert result.exit_code == 0, result.output
    tried, rows = tuning(path), table(path)
    assert len(tried) == 28
    assert len(rows) == 8
    for row in rows:
        mine = [t for t in tried if all(t[k] == row[k] for k in ("method", "client.epochs"))]
        means = {}
        for one in mine:
            option = (one["client.lr"], one["client.mu"])
            means[option] = means.get(option, 0.0) + float(one["loss"]) / 2
        assert (row["client.lr"], row["client.mu"]) == min(means, key=means.get)
        best_lr = float(row["client.lr"])
        assert ("client.lr" in row["at_edge"].split()) == (best_lr not in (0.0, 0.1))
        assert ("client.mu" in row["at_edge"]) == (row["method"] == "prox")
    assert {row["seed"] for row in rows} == {"0", "1"}
    assert (tmp_path / "loss.svg").exists()
    before = (tmp_path / "grid.csv").read_bytes()
    assert run(path).exit_code == 0, "again: nothing is left to do"
    assert (tmp_path / "grid.csv").read_bytes() == before
    assert run(path, "--plot").exit_code == 0


def test_what_diverges_is_never_chosen_and_a_method_of_which_nothing_is_done_is_refused(
    tmp_path, quick
):
    grid = TUNED.replace("[0.0, 0.1, 1.0]", "[0.1, 1e30]").replace("[0.5, 0.6]", "[1e30, 1e31]")
    path = write(tmp_path, grid.replace('"client.epochs" = [1, 2]', '"client.epochs" = [2]'), FREE)
    result = run(path)
    assert result.exit_code == 0, result.output
    rows = table(path)
    assert {row["client.lr"] for row in rows if row["method"] == "plain"} == {"0.1"}
    prox = [row for row in rows if row["method"] == "prox"]
    assert {row["status"] for row in prox} == {"refused"}
    assert all("none of its tuning runs is done" in row["reason"] for row in prox)


def test_higher_is_better_unless_it_says_otherwise(tmp_path):
    def choose(lower):
        grid = Grid.model_validate(
            {
                "tune": {
                    "over": {"client.lr": [0.1, 0.2]},
                    "by": "accuracy",
                    "lower_is_better": lower,
                }
            }
        )
        tried = [Cell({"client.lr": lr}, 1000, None, None) for lr in (0.1, 0.2)]
        results = {
            cell.name: {"status": "done", "outcome": {"accuracy": cell.values["client.lr"]}}
            for cell in tried
        }
        return best_options(grid, tried, results, {})

    assert choose(False) == {"client.lr": 0.2}
    assert choose(True) == {"client.lr": 0.1}


@every_case(
    "old, new, message",
    [
        ("seeds = [7, 8]", "seeds = [1, 8]", "which are also seeds of the grid"),
        ('"client.lr" = [0.0, 0.1, 1.0]', '"client.epochs" = [1]', "varied by the grid and tuned"),
        ('"client.lr" = [0.0, 0.1, 1.0]', '"clients.lr" = [1.0]', "not a key of the form"),
        ('"client.lr" = [0.0, 0.1, 1.0]', '"client.lr" = []', "empty list"),
        ('name = "prox"', 'name = "plain"', "two have the same name"),
        ('name = "prox"', 'nam = "prox"', "nam"),
        ('"client.objective" = "fedprox" }', '"client.lr" = 0.5 }', "but the grid varies or"),
        ('by = "loss"', 'by = "auc"', "is 'auc', but .* no such measure; expected one of acc"),
        ('by = "loss"', 'by = "sampler"', "is 'sampler', but these runs have no such measure"),
        ('x = "client.epochs"', 'x = "client.lr"', "does not vary|never varies|expected"),
        ("[tune]\nseeds = [7, 8]\nby = \"loss\"\nlower_is_better = true\n[tune.over]\n"
         '"client.lr" = [0.0, 0.1, 1.0]\n', "", r"\[tune\] is missing"),
    ],
)  # fmt: skip
def test_a_comparison_that_cannot_be_meant_is_refused(tmp_path, quick, old, new, message):
    assert old in TUNED
    result = run(write(tmp_path, TUNED.replace(old, new), FREE))
    assert result.exit_code == 2
    assert __import__("re").search(message, result.output.replace("\n", " "))


def test_an_interrupted_tuning_goes_on_and_a_dry_run_counts_both_stages(
    tmp_path, quick, monkeypatch
):
    path = write(tmp_path, FEWER, FREE)
    shown = CliRunner().invoke(main, ["experiment", str(path), "--dry-run"])
    assert "14 cells to tune on, then 4" in " ".join(shown.output.split())
    ran: list[Job] = []
    real = experiment.run_cell

    def stops(job):
        if len(ran) == 5:
            raise KeyboardInterrupt
        ran.append(job)
        return real(job)

    monkeypatch.setattr(experiment, "run_cell", stops)
    assert run(path).exit_code == 130
    assert len(tuning(path)) == 5
    assert not path.with_suffix(".csv").exists()
    seen = {job.name for job in ran}
    monkeypatch.setattr(experiment, "run_cell", lambda job: (ran.append(job), real(job))[1])
    result = run(path, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout[result.stdout.index("{") :])["done"] == 4
    assert len(ran) == 14 + 4
    assert len({job.name for job in ran}) == 18
    assert seen <= {job.name for job in ran}


def test_tuned_keys_are_set_before_the_seeds(tmp_path):
    path = write(tmp_path, TUNED, FREE)
    found = tuned_cells(path, load_grid(path), lambda values: {"client.lr": 0.25, "client.mu": 0.1}
                        if values["method"] == "prox" else {"client.lr": 0.1})  # fmt: skip
    assert len(found) == 8
    prox = [cell for cell in found if cell.values["method"] == "prox"]
    assert {cell.config.client.lr for cell in prox} == {0.25}
    assert all("client.lr" not in cell.values for cell in found)


@every_case(
    "key, options, at_edge",
    [
        ("privacy.clip", [0.1, 0.3, 1.0], [0.1, 1.0]),
        ("privacy.clip", [1.0, 0.1, 0.3], [1.0, 0.1]),
        ("client.batch_size", [4, 8, 2], [8, 2]),
        ("client.stragglers", [0.0, 0.5, 0.9], [0.9]),
        ("privacy.clip", [0.1], []),
        ("run.simulation_metrics", [False, True], []),
    ],
    ids=["ascending", "in any order", "whole numbers", "zero is an end", "alone", "a switch"],
)
def test_what_was_chosen_is_marked_where_a_better_number_may_lie_beyond(
    tmp_path, key, options, at_edge
):
    grid = TUNED.replace('"client.lr" = [0.0, 0.1, 1.0]', f'"{key}" = {json.dumps(options)}')
    path = write(tmp_path, grid)
    for chosen in options:
        planned = tuned_cells(path, load_grid(path), lambda values, chosen=chosen: {key: chosen})
        marked = {cell.tuned["at_edge"] for cell in planned}
        assert marked == ({key} if chosen in at_edge else {""})


def graded(scores, lower=False):
    """What is chosen of learning rates with these results."""
    grid = Grid.model_validate(
        {"tune": {"over": {"client.lr": list(scores)}, "by": "loss", "lower_is_better": lower}}
    )
    tried = [Cell({"client.lr": lr}, 1000, None, None) for lr in scores]
    results = {
        cell.name: {"status": "done", "outcome": {"loss": scores[cell.values["client.lr"]]}}
        for cell in tried
    }
    return best_options(grid, tried, results, {})


@every_case("bad", [float("nan"), None])
@every_case("lower", [True, False])
def test_what_is_no_number_is_never_chosen_wherever_it_stands(bad, lower):
    for order in ([0.1, 0.2, 0.3], [0.3, 0.1, 0.2], [0.2, 0.3, 0.1]):
        scores = {0.1: bad, 0.2: 1.0, 0.3: 2.0}
        chosen = graded({lr: scores[lr] for lr in order}, lower)
        assert chosen == {"client.lr": 0.2 if lower else 0.3}
    assert isinstance(graded({0.1: bad, 0.2: bad}, lower), str)


def test_nothing_is_chosen_before_everything_was_tried(tmp_path, quick, monkeypatch):
    path = write(tmp_path, FEWER, FREE)
    real, seen = experiment.run_cell, []

    def one_waits(job):
        seen.append(job)
        if len(seen) == 3:
            return {"status": "waiting", "reason": "locked"}
        return real(job)

    monkeypatch.setattr(experiment, "run_cell", one_waits)
    result = run(path, "--json")
    assert result.exit_code == 2
    assert '"waiting": 1' in result.stdout
    assert "only after every candidate has run" in result.output
    assert not path.with_suffix(".csv").exists()
    monkeypatch.setattr(experiment, "run_cell", real)
    assert run(path).exit_code == 0
    assert len(table(path)) == 4
