"""Grids: which cells there are, each run once whatever is interrupted, tables and figures."""

import csv
import errno
import itertools
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from grids import BASE, GRID, in_process, of, table, write
from lanes import every_case, mostly_slow
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure as Matplotlib
from pool_jobs import job
from pyarrow import parquet
from waiting import LONG, until

import privfed
from privfed.cli.main import main
from privfed.core.errors import Refused
from privfed.grid import cell_job
from privfed.grid import engine as experiment
from privfed.grid.pictures.drawing import draw
from privfed.grid.pictures.figures import MARKERS, Figure, values
from privfed.grid.pictures.panels import draw_bars_panel, draw_curves_panel
from privfed.grid.process_pool import Died, Ended, Started, work
from privfed.grid.tables import read_table, spread, summary
from privfed.store.run_directory import RunDirectory


def run(path, *words):
    return CliRunner().invoke(main, ["experiment", str(path), "--jobs", "1", *map(str, words)])


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(experiment, "work", in_process)


def test_on_end_receives_each_cell_that_this_call_ends(tmp_path, quick):
    path, ended = write(tmp_path, GRID.replace("0.5]", "-1]").replace("0.1\n", "-1\n")), []
    done = privfed.experiment(path, on_end=ended.append)
    assert len(ended) == done.cells
    assert {(each["client.lr"], each["status"]) for each in ended} == {
        (0.1, "done"),
        (-1, "refused"),
    }
    assert all(each["epsilon"] > 0 for each in ended if each["status"] == "done")
    assert all("client.lr is -1" in each["reason"] for each in ended if each["status"] == "refused")
    ended.clear()
    privfed.experiment(path, on_end=ended.append)
    assert {each["status"] for each in ended} == {"refused"}
    with pytest.raises(Refused, match="on_end is 3; expected a function of the result of a cell"):
        privfed.experiment(path, on_end=3)


def test_cells_are_the_product_without_exclusions_times_seeds(tmp_path):
    found = of(write(tmp_path))
    assert [(*cell.values.values(), cell.seed) for cell in found] == [
        (lr, optimizer, seed)
        for lr, optimizer in ((0.1, "fedavg"), (0.5, "fedavg"), (0.5, "fedavgm"))
        for seed in (0, 1)
    ]
    assert all(cell.config.run.rounds == 4 for cell in found), "the base was not used"
    assert [cell.config.run.seed for cell in found] == [0, 1] * 3
    assert len({cell.name for cell in found}) == 6


def test_a_cell_is_known_by_its_configuration_not_by_how_it_is_written(tmp_path):
    names = [cell.name for cell in of(write(tmp_path / "a"))]
    reordered = GRID.replace("[0.1, 0.5]", "[0.5, 0.1]").replace("[0, 1]", "[1, 0]")
    other = [cell.name for cell in of(write(tmp_path / "b", reordered))]
    assert names != other
    assert set(names) == set(other)
    longer = BASE.replace("rounds = 4", "rounds = 5")
    changed = [cell.name for cell in of(write(tmp_path / "c", GRID, longer))]
    assert not set(names) & set(changed), "an edited base was not noticed"


def test_naming_another_part_drops_the_keys_of_the_former_one(tmp_path):
    base = BASE + "\n[server]\noptimizer = 'fedavgm'\nmomentum = 0.5"
    found = of(write(tmp_path, GRID, base))
    assert all(cell.refusal is None for cell in found)


@every_case(
    "grid, message",
    [
        ('[grid]\n"client.lr" = []', "'client.lr' is an empty list"),
        ("seeds = []", r"seeds is \[\]"),
        ("seeds = [1, 1]", "names a seed twice"),
        ('[grid]\n"client.lr" = [1.0, 1.0]', "lists a value twice"),
        ('[grid]\n"client.lrr" = [1.0]', "every cell is refused.*client.lrr is not a known key"),
        (
            '[grid]\n"clients.lr" = [1.0]',
            "not a key of the form section.key.*did you mean 'client'",
        ),
        ('[grid]\n"run.seed" = [1]', "seeds = "),
        ('[grid]\n"client.lr" = 0.5', "client.lr is 0.5"),
        ('[grid]\n"client.lr" = [1.0]\n[[exclude]]\n"client.lr" = 2.0', "matches no cell"),
        ('[grid]\n"client.lr" = [1.0]\n[[exclude]]\n"server.lr" = 1.0', "that the grid varies"),
        ('[grid]\n"client.lr" = [1.0]\n[[exclude]]\n"client.lr" = 1.0', "leave no cell"),
        ("sedes = [1]", "sedes is not a known key.*did you mean 'seeds'"),
        ("base = 'gone.toml'", "gone.toml does not exist"),
        ("format = 2", "format = 2"),
        ("seeds = [", "not valid TOML"),
        (
            '[grid]\n"client.lr" = [1.0]\n[[figure]]\n'
            'name = "a"\nx = "client.lr"\nby = "server.lr"',
            "names 'server.lr', which the grid does not vary",
        ),
    ],
)
def test_a_grid_that_cannot_be_meant_is_refused(tmp_path, grid, message, quick):
    result = run(write(tmp_path, grid))
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert re.search(message, result.stderr.replace("\n         ", " "), re.DOTALL), result.stderr


def test_refused_and_failing_cells_are_recorded_and_the_rest_goes_on(tmp_path, quick, monkeypatch):
    grid = """
    base = "base.toml"
    [grid]
    "aggregation.rule" = ["mean", "median"]
    "client.lr" = [0.5, 1e38]
    "server.momentum" = [0.1, 2.0]
    """
    path = write(tmp_path, grid, BASE.replace("noise_multiplier = 2.0", 'mechanism = "none"'))
    result = run(path, "--json")
    assert result.exit_code == 0, result.output
    counts = json.loads(result.stdout.splitlines()[-1])
    assert counts["cells"] == 8
    assert counts["refused"] == 8 - counts["done"]
    rows = {(r["aggregation.rule"], r["client.lr"], r["server.momentum"]): r for r in table(path)}
    assert rows["mean", "0.5", "0.1"]["status"] == "done"
    assert "diverged" in rows["mean", "1e+38", "0.1"]["reason"]
    assert "number below 1" in rows["mean", "0.5", "2"]["reason"]
    assert rows["mean", "0.5", "2"]["accuracy"] == ""


def test_a_done_cell_is_never_repeated_and_a_failed_one_only_on_request(
    tmp_path, quick, monkeypatch
):
    ran = []
    real = experiment.run_cell

    def counted(job):
        ran.append(job.name)
        if len(ran) == 2:
            raise_ = {"status": "failed", "reason": "a bug", "seconds": 1.0, "version": "0"}
            return cell_job._store(Path(job.folder), raise_)
        return real(job)

    monkeypatch.setattr(experiment, "run_cell", counted)
    path = write(tmp_path)
    assert run(path).exit_code == 1, "a failure has to show in the exit code"
    assert len(ran) == len(set(ran)) == 6
    assert run(path).exit_code == 1
    assert len(ran) == 6
    before = (tmp_path / "grid.csv").read_bytes()
    assert run(path, "--retry").exit_code == 0
    assert ran[6:] == ran[1:2]
    assert (tmp_path / "grid.csv").read_bytes() != before
    wider = write(tmp_path, GRID.replace("[0, 1]", "[0, 1, 2]"))
    assert run(wider).exit_code == 0
    assert len(ran) == 7 + 3
    longer = write(tmp_path, GRID, BASE.replace("rounds = 4", "rounds = 5"))
    assert run(longer).exit_code == 0
    assert len(ran) == 10 + 6


def test_an_interrupted_experiment_goes_on_where_it_stopped(tmp_path, quick, monkeypatch):
    real, ran = experiment.run_cell, []

    def interrupted(job):
        ran.append(job.name)
        if len(ran) == 3:
            (Path(job.folder) / "run").mkdir(parents=True)
            raise KeyboardInterrupt
        return real(job)

    monkeypatch.setattr(experiment, "run_cell", interrupted)
    path = write(tmp_path)
    result = run(path)
    assert result.exit_code == 130
    assert "the same command resumes" in result.stderr
    assert len(table(path)) == 2
    assert run(path).exit_code == 0
    assert len(table(path)) == 6
    assert len(ran) == 7


def test_a_full_disk_stops_the_experiment_and_loses_nothing(tmp_path, quick, monkeypatch):
    real, ran = cell_job.train, []

    def full(config, path):
        ran.append(path)
        if len(ran) == 2:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return real(config, path)

    monkeypatch.setattr(cell_job, "train", full)
    path = write(tmp_path)
    result = run(path)
    assert result.exit_code == 2
    assert "No space left" in result.stderr
    assert "repeat the command to resume" in result.stderr
    assert len(ran) == 2, "went on writing to a full disk"
    assert len(table(path)) == 1
    assert run(path).exit_code == 0
    assert len(table(path)) == 6


def test_a_bug_of_one_cell_does_not_end_the_others(tmp_path, quick, monkeypatch):
    real, ran = cell_job.train, []

    def buggy(config, path):
        ran.append(path)
        if len(ran) == 2:
            raise AssertionError("never")
        return real(config, path)

    monkeypatch.setattr(cell_job, "train", buggy)
    path = write(tmp_path)
    assert run(path).exit_code == 1
    statuses = [row["status"] for row in table(path)]
    assert statuses == ["done", "failed", "done", "done", "done", "done"]
    reason = table(path)[1]["reason"]
    assert "AssertionError (test_grid.py:" in reason
    assert "never" not in reason, "an exception's text may quote data"


def test_tables_say_every_varied_key_measure_and_what_epsilon_means(tmp_path, quick):
    path = write(tmp_path)
    assert run(path).exit_code == 0
    rows = table(path)
    first = rows[0]
    assert list(first)[:5] == ["client.lr", "server.optimizer", "seed", "status", "reason"]
    assert 0 <= float(first["accuracy"]) <= 1
    meaning = (first["delta"], first["unit"], first["relation"], first["sampler"])
    assert meaning == ("0.001", "client", "add/remove", "poisson")
    assert float(first["epsilon"]) == min(float(first["epsilon_rdp"]), float(first["epsilon_pld"]))
    frame = parquet.read_table(tmp_path / "grid.parquet").to_pylist()
    assert [row["accuracy"] for row in frame] == [float(row["accuracy"]) for row in rows]
    assert [row["cell"] for row in read_table(tmp_path / "grid.csv")] == [r["cell"] for r in rows]
    sums = list(csv.DictReader((tmp_path / "grid.summary.csv").read_text().splitlines()))
    assert len(sums) == 3
    two = [float(row["accuracy"]) for row in rows[:2]]
    assert float(sums[0]["accuracy_mean"]) == pytest.approx(sum(two) / 2)
    assert (float(sums[0]["accuracy_min"]), float(sums[0]["accuracy_max"])) == (min(two), max(two))
    rounds = read_table(tmp_path / "grid.rounds.csv")
    assert [row["round"] for row in rounds] == [2, 4] * 6
    assert rounds[1]["accuracy"] == rows[0]["accuracy"] or math.isclose(
        rounds[1]["accuracy"], float(rows[0]["accuracy"])
    )
    assert all((tmp_path / "cells" / row["cell"] / "run/ledger.jsonl").exists() for row in rows)


def test_spread_by_hand():
    found = spread([1.0, 2.0, 3.0, 6.0])
    assert (found.mean, found.low, found.high, found.count) == (3.0, 1.0, 6.0, 4)
    assert found.std == pytest.approx(math.sqrt(14 / 3))
    assert spread([math.inf, math.inf]).mean == math.inf
    assert spread([]).to_row("x") == {"x_mean": None, "x_sd": None, "x_min": None, "x_max": None}
    done = {"k": 1, "status": "done", "reason": "", "accuracy": 0.5, "epsilon": 1.0}
    (line,) = summary(["k"], [done, {**done, "status": "failed", "accuracy": None}])
    assert (line["seeds"], line["not_done"], line["accuracy_mean"]) == (1, 1, 0.5)


def test_a_dry_run_lists_cells_and_time_and_writes_nothing(tmp_path):
    path = write(tmp_path, GRID.replace('["fedavg", "fedavgm"]', '["fedavg", "fedavgm", "no"]'))
    before = set(tmp_path.iterdir())
    result = run(path, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "10 cells, with 2 seeds: about" in result.stdout
    assert "refused: server.optimizer is 'no'" in " ".join(result.stdout.split())
    assert set(tmp_path.iterdir()) == before


def row(seed=0, **keys):
    return {"accuracy": 0.5 + 0.1 * seed, "seed": seed, "status": "done", **keys}


ROWS = [
    row(seed, a=a, b=b, c=c)
    for a in (1, 2, math.inf)
    for b in "xy"
    for c in (3, 4)
    for seed in (0, 1)
]


@pytest.mark.parametrize("kind", mostly_slow(["curves", "heat", "bars"], "heat"))
def test_figures_are_drawn_the_same_each_time(kind):
    figure = Figure(name="f", measure="accuracy", kind=kind, x="a", by="b", panels="c")
    first, again = (draw(figure, ROWS, ["a", "b", "c"]) for _ in range(2))
    assert first == again
    assert first["f.png"][:4] == b"\x89PNG"
    picture = first["f.svg"].decode()
    assert ">∞<" in picture, "text has to stay text, and infinity to be shown"
    assert "c 3" in picture


@pytest.mark.parametrize("x, by, joined", [("a", "b", True), ("b", "a", False)])
def test_a_line_joins_numbers_and_no_names(x, by, joined):
    """Names have no order; the whiskers of what is not joined do not lie over each other."""
    figure = Figure(name="f", measure="accuracy", x=x, by=by, where={"c": 3})
    axes = Matplotlib().add_subplot()
    rows = [each for each in ROWS if each["c"] == 3]
    draw_curves_panel(figure, rows, rows, axes)
    series = [line for line in axes.get_lines() if line.get_marker() in MARKERS]
    assert [line.get_linestyle() != "None" for line in series] == [joined] * (2 if joined else 3)
    places = [tuple(line.get_xdata()) for line in series]
    assert len(set(places)) == (1 if joined else 3)
    _, labels = axes.get_legend_handles_labels()
    assert labels == (["x", "y"] if joined else ["1", "2", "∞"])


@pytest.mark.parametrize("draw_panel", [draw_curves_panel, draw_bars_panel])
def test_whiskers_end_at_the_least_and_the_greatest_seed(draw_panel):
    """Their mean lies nearer to the least."""
    rows = [row(a=a) | {"accuracy": value} for a in "xy" for value in (0.1, 0.2, 0.9)]
    axes = Matplotlib().add_subplot()
    draw_panel(Figure(name="f", measure="accuracy", x="a"), rows, rows, axes)
    (whiskers,) = (lines for lines in axes.collections if isinstance(lines, LineCollection))
    ends = [whisker[:, 1].tolist() for whisker in whiskers.get_segments()]
    assert ends == [pytest.approx([0.1, 0.9])] * 2


def test_one_name_among_numbers_is_enough_for_points():
    rows = [row(a=a) for a in (1, 2, "none")]
    axes = Matplotlib().add_subplot()
    draw_curves_panel(Figure(name="f", measure="accuracy", x="a"), rows, rows, axes)
    assert axes.get_lines()[0].get_linestyle() == "None"


def test_a_map_shows_the_worst_case():
    rows = [
        row(a=a, b=b, c=c) | {"accuracy": a + 10 * c} for a in (1, 2) for b in "xy" for c in (3, 4)
    ]
    keys = ["a", "b", "c"]
    picture = draw(
        Figure(name="f", measure="accuracy", kind="heat", x="a", by="b", worst="c"), rows, keys
    )["f.svg"]
    assert b">31<" in picture
    assert b">41<" not in picture
    lower = Figure(
        name="f", measure="accuracy", kind="heat", x="a", by="b", worst="c", lower_is_better=True
    )
    assert b">41<" in draw(lower, rows, keys)["f.svg"]


@pytest.mark.parametrize("title", ["", "Backdoors"])
def test_a_map_of_a_backdoor_grid_has_the_attacks_success(title):
    attacks = {"none": None, "backdoor": 0.75}
    rows = [
        row(seed, a=a, b=b) | {"accuracy": 0.9, "attack_success": success}
        for a in (1, 2)
        for b, success in attacks.items()
        for seed in (0, 1)
    ]
    figure = Figure(name="f", kind="heat", x="a", by="b", title=title)
    picture = draw(figure, rows, ["a", "b"])["f.svg"].decode()
    assert "means over 2 seeds<" in picture
    assert picture.count(">0.9<") == 4
    assert picture.count(">(0.75)<") == 2
    assert f"{title or 'accuracy'} (in brackets: attack success)" in picture
    alone = figure.model_copy(update={"measure": "attack_success", "title": ""})
    assert "brackets" not in draw(alone, rows, ["a", "b"])["f.svg"].decode()


def test_a_map_states_its_seeds_and_rounds():
    rows = [row(seed, a=a) | {"rounds": 1200} for a in (1, 2) for seed in (0, 1, 2)]
    figure = Figure(name="f", kind="heat", x="a")
    assert "means over 3 seeds after 1,200 rounds<" in draw(figure, rows, ["a"])["f.svg"].decode()
    rows[0]["rounds"], rows[-1]["status"] = 900, "failed"  # a run that stopped early, one missing
    stated = "means over 2 to 3 seeds after 900 to 1,200 rounds<"
    assert stated in draw(figure, rows, ["a"])["f.svg"].decode()
    line = figure.model_copy(update={"kind": "curves"})
    assert "seeds" not in draw(line, rows, ["a"])["f.svg"].decode()


@every_case(
    "changes, message",
    [
        ({"x": "z"}, "names 'z', which the grid does not vary"),
        ({"measure": "auc", "where": {"c": 3}}, "shows 'auc'"),
        ({"measure": "status", "where": {"c": 3}}, "shows 'status'"),
        ({"panels": "a", "where": {"c": 3}}, "uses a key twice"),
        ({}, "would average over c"),
        ({"where": {"c": [3, 4]}}, "would average over c"),
        ({"where": {"c": 9}}, "has nothing to show"),
    ],
)
def test_a_figure_never_hides_a_key(changes, message):
    figure = Figure(**{"name": "f", "x": "a", "by": "b", **changes})
    with pytest.raises(Refused, match=message):
        draw(figure, ROWS, ["a", "b", "c"])
    draw(Figure(name="f", measure="accuracy", x="a", by="b", where={"c": 3}), ROWS, ["a", "b", "c"])


def test_values_are_ordered_where_they_are_numbers():
    assert values([{"k": v} for v in (3, math.inf, 1, 3)], "k") == [1, 3, math.inf]
    assert values([{"k": v} for v in ("b", "a", "b")], "k") == ["b", "a"]


def test_plot_needs_the_table_alone(tmp_path, quick):
    figure = '\n[[figure]]\nname = "a"\nx = "client.lr"\nby = "server.optimizer"\n'
    path = write(tmp_path, GRID + figure)
    assert run(path, "--plot").exit_code == 2
    assert run(path).exit_code == 0
    drawn = (tmp_path / "a.svg").read_bytes()
    (tmp_path / "a.svg").unlink()
    shutil.rmtree(tmp_path / "cells")
    (tmp_path / "base.toml").unlink()
    assert run(path, "--plot").exit_code == 0
    assert (tmp_path / "a.svg").read_bytes() == drawn


# Real processes.


def test_a_worker_that_dies_takes_nothing_along():
    ended = [e for e in work(job, ["a", "die", "b", "exit", "c"], 2) if isinstance(e, Ended)]
    results = {event.job: event.result for event in ended}
    assert results["die"] == Died(-signal.SIGKILL)
    assert "killed (SIGKILL)" in str(results["die"])
    assert "exit code 7" in str(results["exit"])
    assert [results[name][0] for name in "abc"] == ["a", "b", "c"]


def test_jobs_run_side_by_side_in_processes_that_are_used_again(tmp_path):
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    jobs = [(one, two), (two, one), 0.0, 0.0]
    ended = [event for event in work(job, jobs, 2) if isinstance(event, Ended)]
    assert {event.job for event in ended} == {*jobs}
    assert not any(isinstance(event.result, Died) for event in ended)
    assert len({event.result[1] for event in ended}) == 2


def test_who_stops_listening_ends_the_processes():
    events = work(job, [LONG, LONG], 2)
    assert isinstance(next(events), Started)
    assert isinstance(next(events), Started)
    began = time.monotonic()
    events.close()
    assert time.monotonic() - began < LONG / 2  # it does not wait for the jobs


def command(path):
    return [sys.executable, "-m", "privfed", "experiment", str(path), "--jobs", "2"]


@pytest.mark.slow
def test_killing_the_parent_loses_nothing_and_ends_the_workers(tmp_path):
    """Kill -9 in the middle of six cells; the same command then does what is left, once."""
    path = write(tmp_path, GRID, BASE.replace("rounds = 4", "rounds = 60"))
    process = subprocess.Popen(command(path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    results = lambda: sorted(tmp_path.glob("cells/*/result.json"))  # noqa: E731
    until(lambda: len(results()) >= 2, "two cells")
    process.send_signal(signal.SIGSTOP)  # it hands out no further cell while this is looked at
    try:
        blocked = CliRunner().invoke(main, ["experiment", str(path)])
    finally:
        process.kill()
        process.communicate()
    assert blocked.exit_code == 2
    assert "by another process" in blocked.stderr
    kept = {result: result.read_bytes() for result in results()}
    assert 2 <= len(kept) < 6, "too fast to prove anything"
    until(lambda: not _children_of(path), "workers that outlived their parent to end")
    again = subprocess.run(command(path), capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    rows = table(path)
    assert [row["status"] for row in rows] == ["done"] * 6
    assert all(path.read_bytes() == content for path, content in kept.items())


def _children_of(path):
    """Processes that still have a cell's run directory open (its lock)."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            targets = [str(link.readlink()) for link in (process / "fd").iterdir()]
        except OSError:
            continue
        if any(str(path.parent) in target for target in targets):
            found.append(process.name)
    return found


# What a review found; each was wrong once.


def test_a_second_run_changes_no_byte_of_any_table(tmp_path, quick):
    grid = 'base = "base.toml"\n[grid]\n"privacy.epsilon" = [4.0, inf]'
    path = write(tmp_path, grid, BASE.replace("noise_multiplier = 2.0\n", ""))
    assert run(path).exit_code == 0
    tables = sorted(p for p in tmp_path.glob("grid.*") if p.suffix != ".toml")
    assert len(tables) == 5  # the page, too
    before = [table.read_bytes() for table in tables]
    assert run(path).exit_code == 0
    assert [table.read_bytes() for table in tables] == before
    frame = parquet.read_table(tmp_path / "grid.parquet")
    assert str(frame.schema.field("epsilon").type) == "double"
    assert frame.column("epsilon").to_pylist()[1] == math.inf


def test_measures_are_summed_up_even_where_the_first_cell_has_none(tmp_path, quick):
    grid = 'base = "base.toml"\nseeds = [0, 1]\n[grid]\n"client.lr" = [-1.0, 0.1]'
    path = write(tmp_path, grid)
    assert run(path).exit_code == 0
    names = list(table(path)[0])
    assert names.index("accuracy") < names.index("epsilon")
    sums = read_table(tmp_path / "grid.summary.csv")
    scores = [float(row["accuracy"]) for row in table(path) if row["status"] == "done"]
    assert len(scores) == 2
    assert sums[1]["accuracy_mean"] == pytest.approx(sum(scores) / 2)
    assert (sums[0]["seeds"], sums[0]["not_done"]) == (0, 2)
    assert (sums[1]["delta"], sums[1]["relation"]) == (0.001, "add/remove")


@pytest.mark.parametrize(
    "grid, message",
    [
        (
            '"privacy.epsilon" = [1.0]\n"privacy.noise_multiplier" = [1.0]',
            "vary only one of the two",
        ),
        ('"data.partition" = ["", "natural"]', "the same configuration"),
    ],
)
def test_two_rows_are_never_one_run(tmp_path, quick, grid, message):
    result = run(write(tmp_path, f'base = "base.toml"\n[grid]\n{grid}'))
    assert result.exit_code == 2
    assert message in result.stderr.replace("\n         ", " ")


def test_a_cell_that_another_process_holds_is_left_waiting(tmp_path, quick):
    path = write(tmp_path, 'base = "base.toml"')
    (cell,) = of(path)
    folder = tmp_path / "cells" / cell.name / "run"
    assert run(path).exit_code == 0
    (folder.parent / "result.json").unlink()
    with RunDirectory(folder).locked():
        result = run(path, "--json")
        assert json.loads(result.stdout.splitlines()[-1])["waiting"] == 1
        assert not (folder.parent / "result.json").exists()
    assert run(path).exit_code == 0
    assert (folder.parent / "result.json").exists()


def test_a_killed_worker_costs_nothing_but_time(tmp_path, monkeypatch):
    """Killed once before, once after its result was durable."""
    path = write(tmp_path)
    real, calls = experiment.run_cell, []

    def dying(do, jobs, count):
        for cell in jobs:
            calls.append(cell.name)
            yield Started(cell)
            if len(calls) == 2:
                yield Ended(cell, Died(-9))
                continue
            result = do(cell)
            yield Ended(cell, Died(-9) if len(calls) == 3 else result)

    monkeypatch.setattr(experiment, "work", dying)
    monkeypatch.setattr(experiment, "run_cell", real)
    assert run(path).exit_code == 1
    assert [row["status"] for row in table(path)] == ["done", "failed", *["done"] * 4]
    assert run(path).exit_code == 0
    assert calls[6:] == calls[1:2]
    assert {row["status"] for row in table(path)} == {"done"}


@every_case(
    "content",
    ["[]", "{}", "null", '{"status":"stopped"}', '{"status":"done"}', '{"status":[1]}', ""],
)
def test_a_result_that_says_nothing_is_made_again(tmp_path, quick, content):
    path = write(tmp_path, 'base = "base.toml"')
    assert run(path).exit_code == 0
    (found,) = tmp_path.glob("cells/*/result.json")
    found.write_text(content)
    (tmp_path / "cells" / found.parent.name / "run/metrics.jsonl").write_bytes(b'{"round":2\0')
    assert run(path).exit_code == 0
    assert table(path)[0]["status"] == "done"


def test_a_torn_or_missing_metrics_file_does_not_cost_the_table(tmp_path, quick):
    path = write(tmp_path, 'base = "base.toml"\nseeds = [0, 1]')
    assert run(path).exit_code == 0
    first, second = sorted(tmp_path.glob("cells/*/run/metrics.jsonl"))
    first.write_bytes(first.read_bytes()[:-9] + b"\0\0")
    second.unlink()
    assert run(path).exit_code == 0
    assert len(table(path)) == 2


def test_a_broken_run_directory_is_set_aside_on_request(tmp_path, quick):
    path = write(tmp_path, 'base = "base.toml"')
    assert run(path).exit_code == 0
    (found,) = tmp_path.glob("cells/*/result.json")
    found.unlink()
    (found.parent / "run/checkpoint.safetensors").write_bytes(b"garbage")
    assert run(path).exit_code == 1
    assert "--retry sets its run directory aside" in table(path)[0]["reason"]
    assert run(path, "--retry").exit_code == 0
    assert (found.parent / "run.broken-1/ledger.jsonl").exists()
    assert table(path)[0]["status"] == "done"


def test_values_that_no_table_can_hold_are_written_as_text(tmp_path, quick):
    grid = 'base = "base.toml"\n[grid]\n"client.lr" = [0.1, 1979-05-27, [1]]\n'
    path = write(tmp_path, grid + '"data.clients" = [12, 99999999999999999999999]')
    assert run(path).exit_code == 0
    statuses = [row["status"] for row in table(path)]
    assert statuses == ["done", *["refused"] * 5]
    assert run(write(tmp_path, "seeds = [-1]")).exit_code == 2


@every_case(
    "figure, message",
    [
        ('x = "server.lr"', "which the grid does not vary"),
        ('x = "server.optimizer"\nwhere = { "client.lr" = 9.0 }', "in the grid"),
        ('x = "client.lr"', "would average over server.optimizer"),
    ],
)
def test_figures_are_checked_before_anything_runs(tmp_path, quick, figure, message):
    result = run(write(tmp_path, f'{GRID}\n[[figure]]\nname = "a"\n{figure}'))
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "cells").exists()


def test_a_table_of_another_grid_is_not_drawn(tmp_path, quick):
    path = write(
        tmp_path, GRID + '\n[[figure]]\nname = "a"\nx = "client.lr"\nby = "server.optimizer"'
    )
    assert run(path).exit_code == 0
    fewer = '[grid]\n"client.lr" = [0.1, 0.5]\n[[figure]]\nname = "a"\nx = "client.lr"'
    result = run(write(tmp_path, fewer), "--plot")
    assert result.exit_code == 2
    assert "is the table of another grid" in result.stderr


def test_the_worst_case_of_what_is_missing_is_not_known():
    rows = [row(a=a, b="x", c=c) | {"accuracy": 0.3 * c} for a in (1, 2) for c in (1, 2)]
    figure = Figure(name="f", measure="accuracy", kind="heat", x="a", by="b", worst="c")
    assert b">0.3<" in draw(figure, rows, ["a", "b", "c"])["f.svg"]
    picture = draw(figure, rows[1:], ["a", "b", "c"])["f.svg"].decode()
    assert ">—<" in picture
    assert ">0.6<" not in picture


SLOW_KINDS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("bars", "heat")]


@pytest.mark.parametrize("kind", ["curves", *SLOW_KINDS])
def test_awkward_tables_are_drawn(kind):
    same = 0.013039117352056168
    rows = [
        row(seed, a=a) | {"accuracy": same}
        for a in ("a long name of a value", "_b", "")
        for seed in range(3)
    ]
    assert draw(Figure(name="f", measure="accuracy", kind=kind, x="a"), rows, ["a"])["f.png"]
    assert draw(
        Figure(name="f", measure="accuracy", kind=kind, x="a", by="c"),
        [r | {"c": 1} for r in rows],
        ["a", "c"],
    )
    infinite = [
        r | {"epsilon": e} for r, e in zip(rows, itertools.cycle((1.0, math.inf)), strict=False)
    ]
    assert draw(Figure(name="f", kind=kind, x="a", measure="epsilon"), infinite, ["a"])["f.png"]
    many = [row(seed, a=1, b=f"{n}") for n in range(7) for seed in (0, 1)]
    assert draw(
        Figure(name="f", measure="accuracy", kind=kind, x="a", panels="b"), many, ["a", "b"]
    )["f.png"]
    with pytest.raises(Refused, match="nothing to show"):
        draw(
            Figure(name="f", measure="accuracy", kind=kind, x="a"),
            [row(a=1) | {"accuracy": None}],
            ["a"],
        )


def test_what_rows_showed_of_clients_is_no_column(tmp_path, quick):
    """Under a rule on rows, simulation metrics hold facts of clients, which no table can."""
    base = BASE.replace("noise_multiplier = 2.0", 'mechanism = "none"')
    base = base.replace("rounds = 4", "rounds = 4\nsimulation_metrics = true")
    grid = 'base = "base.toml"\n[grid]\n"aggregation.rule" = ["median"]'
    path = write(tmp_path, grid, base)
    assert run(path).exit_code == 0
    (measured,) = table(path)
    assert measured["status"] == "done"
    assert "misbehaviour" not in measured


def test_words_that_look_like_numbers_or_nothing_stay_words(tmp_path, quick):
    grid = 'base = "base.toml"\n[grid]\n"data.population" = ["1", "01", "NA", "a, \\"b\\"\\nc"]\n'
    figure = '[[figure]]\nname = "f"\nkind = "bars"\nx = "data.population"\nwhere = {}\n'
    path = write(tmp_path, grid + figure)
    assert run(path).exit_code == 0
    rows = read_table(tmp_path / "grid.csv", ["data.population"])
    assert [r["data.population"] for r in rows] == ["1", "01", "NA", 'a, "b"\nc']
    assert all(f">{name}<" in (tmp_path / "f.svg").read_text() for name in ("1", "01", "NA"))


def test_a_grid_of_which_nothing_runs_says_so(tmp_path, quick):
    path = write(tmp_path, 'base = "base.toml"\n[grid]\n"cohort.size" = [100, 200]')
    result = run(path)
    assert result.exit_code == 2
    assert "no cell is done" in result.stderr
    assert "cohort.size is 100" in table(path)[0]["reason"]
    assert "cohort.size is" in run(path, "--dry-run").stdout


def test_a_void_guarantee_is_a_word_in_the_table_and_no_measure(tmp_path, quick):
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "grid.toml").write_text(
        'base = "base.toml"\nseeds = [1, 2]\n[grid]\n'
        '"attack.name" = ["alie", "sign_flip"]\n"attack.fraction" = [0.5]\n'
    )
    result = run(tmp_path / "grid.toml")
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader((tmp_path / "grid.csv").read_text().splitlines()))
    words = {row["attack.name"]: row["guarantee"] for row in rows}
    assert words == {"alie": "void (the attacker read raw updates)", "sign_flip": ""}
    averages = list(csv.DictReader((tmp_path / "grid.summary.csv").read_text().splitlines()))
    assert averages[0]["guarantee"].startswith("void")
    assert not [key for key in averages[0] if key.startswith("guarantee_")]


def test_a_base_that_no_file_can_be_called_is_refused(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text(f'base = "{"a" * 400}"\n[grid]\n"server.lr" = [0.1]\n')
    with pytest.raises(Refused, match="cannot be read"):
        of(path)
