"""The studies' files still say what this version reads, and their parts are whole."""

from pathlib import Path

import pytest

from privfed.config.reading import load
from privfed.grid.cells import cells
from privfed.grid.load import load_grid
from privfed.parts import find

STUDIES = Path(__file__).parents[2] / "experiments"


def test_the_run_file_of_every_study_is_read():
    files = sorted(STUDIES.glob("*/*run.toml"))
    assert len(files) > 15
    for file in files:
        load(file)


def grids():
    """All grid files: whatever is no run file's."""
    files = [*STUDIES.glob("*/*.toml"), *STUDIES.glob("*/*/*.toml")]
    return sorted(file for file in files if not file.name.endswith("run.toml"))


def test_every_grid_of_a_study_is_read():
    assert len(grids()) > 35
    for file in grids():
        load_grid(file)


@pytest.mark.slow
@pytest.mark.parametrize("file", grids(), ids=lambda file: str(file.relative_to(STUDIES)))
def test_every_cell_of_a_study_is_a_run_that_can_be_meant(file):
    grid = load_grid(file)
    expanded = cells(file, grid.model_copy(update={"seeds": grid.seeds[:1]}))
    assert [cell.refusal for cell in expanded if cell.config is None] == []


@pytest.mark.parametrize("name", ["Images", "Many"])
def test_the_sources_of_benchmarks_declare_what_sources_have_to(name):
    find("source", f"experiments.benchmarks.workloads:{name}", "data.source")
