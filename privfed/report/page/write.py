"""A page is written beside what it is about, or where it was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accounting.durable import write_atomically
from privfed.errors import Refused
from privfed.grid.results import Files
from privfed.report.page.grid_facts import files_of, grid_facts
from privfed.report.page.grid_page import grid_page
from privfed.report.page.render import render
from privfed.report.page.run_facts import run_facts
from privfed.report.page.run_page import run_page
from privfed.store.run_directory import RunDirectory, path_of


@dataclass(frozen=True)
class Written:
    """The page at `path`, of `about`; `refuted` where canaries refute what the run claims."""

    path: Path
    about: Path
    simulation: bool
    refuted: bool = False

    def to_json(self) -> dict[str, Any]:
        """The object that `privfed report --json` prints."""
        return {
            "page": str(self.path),
            "of": str(self.about),
            "simulation_only": self.simulation,
            "refuted": self.refuted,
        }


def write_run_page(
    run: Path | RunDirectory, out: Path | None = None, simulation: bool = False
) -> Written:
    """Write the page of a run, by default as report/page.html in its directory.

    With `simulation` it goes to report/simulation.html: it is not to be published with the run.
    Raises `Broken` where the run's files prove nothing, and `Refused` for none.
    """
    facts = run_facts(run)
    name = "simulation.html" if simulation else "page.html"
    path = out or path_of(run) / "report" / name
    refuse_folder(path)
    write_atomically(path, render(run_page(facts, simulation)).encode())
    return Written(path, facts.path, simulation, facts.audit.refuted)


def write_grid_page(
    grid: Path | Files, out: Path | None = None, simulation: bool = False
) -> Written:
    """Write the page of a grid, by default as GRID.html beside its tables.

    Raises `Refused` where the grid has no table yet, or is none.
    """
    files = files_of(grid) if isinstance(grid, Path) else grid
    path = out or files.named(".simulation.html" if simulation else ".html")
    refuse_folder(path)
    write_atomically(path, render(grid_page(grid_facts(files), simulation)).encode())
    return Written(path, files.grid, simulation)


def refuse_folder(path: Path) -> None:
    """Raise `Refused` where no file can be written at `path`."""
    if path.is_dir():
        raise Refused(f"--out {path} is a folder; expected a file to write the page to")
    if not path.parent.is_dir():
        raise Refused(f"--out {path}: its folder does not exist; make it, or name another file")
