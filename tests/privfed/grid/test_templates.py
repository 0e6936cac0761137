"""Templates of grids: they are read, tune every method alike, and run at a small size."""

import itertools
import math
import re

import pytest
from click.testing import CliRunner
from grids import in_process

from privfed.cli.experiment import TEMPLATES
from privfed.cli.main import main
from privfed.grid import engine
from privfed.grid.cells import cells
from privfed.grid.load import load_grid
from privfed.grid.tables import read_table

TASK = """
format = 1
[run]
rounds = 3
evaluate_every = 1
[data]
source = "digits"
partition = "dirichlet"
concentration = 0.1
clients = 12
[cohort]
size = 6
[privacy]
mechanism = "none"
"""


@pytest.fixture(scope="module", params=TEMPLATES)
def printed(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("template")
    (folder / "run.toml").write_text(TASK)
    result = CliRunner().invoke(main, ["experiment", "--template", request.param])
    assert result.exit_code == 0, result.output
    (folder / "grid.toml").write_text(result.stdout)
    return folder / "grid.toml"


def test_every_method_of_a_template_is_tuned_with_the_same_effort(printed):
    grid = load_grid(printed)
    efforts = {
        method.name: math.prod(map(len, grid.options({"method": method.name}).values()))
        for method in grid.method
    }
    assert len(efforts) > 3
    assert len({*efforts.values()}) == 1, efforts
    assert not {*grid.seeds} & {*grid.tune.seeds}
    for method in grid.method:
        for options in grid.options({"method": method.name}).values():
            steps = [b / a for a, b in itertools.pairwise(options)]
            assert all(2.9 < step < 10.1 for step in steps), "a logarithmic grid"
    planned = cells(printed, grid)
    assert all(cell.config for cell in planned), [cell.reason for cell in planned if cell.reason]


@pytest.mark.slow
def test_a_template_runs_at_a_small_size_and_draws_what_it_names(printed, monkeypatch):
    monkeypatch.setattr(engine, "work", in_process)
    few = re.sub(r"\[([\d.]+)(, [\d.]+)+\]", r"[\1]", printed.read_text())
    parts = re.split(r"(?m)^(?=\[\[)", few)
    methods = [part for part in parts if part.startswith("[[method]]")]
    small = printed.with_name("small.toml")
    small.write_text("".join(part for part in parts if part not in methods[1:-1]))
    result = CliRunner().invoke(main, ["experiment", str(small), "--jobs", "1"])
    assert result.exit_code == 0, result.output
    for figure in load_grid(small).figure:
        assert "mathdefault" not in small.with_name(f"{figure.name}.svg").read_text()
    rows = read_table(small.with_name("small.rounds.csv"), ["method"])
    assert {row["method"] for row in rows} == {method.name for method in load_grid(small).method}
    for measure in ("bytes", "examples", "device_seconds", "client_accuracy_worst_decile"):
        assert all(row[measure] is not None for row in rows if row["round"] == 3), measure
