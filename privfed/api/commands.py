"""The calls beside training: what the other commands of the command line do."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accounting import regular
from privfed.api.answer import Answer, as_path, from_here
from privfed.api.guarantee import audited
from privfed.core.errors import Refused

if TYPE_CHECKING:
    from privfed.api.run import Run
    from privfed.grid.grid import Grid
    from privfed.grid.results import Files


def runs(folder: str | PathLike[str] = "runs") -> Answer:
    """The runs in `folder`, three folders deep: `rows` has one for each, as `privfed runs` does.

    `pandas.DataFrame(privfed.runs().rows)` is a table of them, and `same_people` says which are
    about the same people. Raises `Refused` where there is no such folder.
    """
    from privfed.report.runs.listed import list_runs
    from privfed.report.runs.listing_table import RunsTable

    return Answer.of(list_runs(from_here(as_path(folder, "folder"))), RunsTable)


def compare(first: str | PathLike[str], second: str | PathLike[str]) -> Answer:
    """Two runs side by side: `settings` that differ, `runs` with guarantees and rounds, `joint` ε.

    Raises `Refused` for a path that is no run, and `Broken` for a run that is broken.
    """
    from privfed.report.runs.compared import compare_runs
    from privfed.report.runs.comparison_table import ComparisonTable

    paths = (as_path(first, "first"), as_path(second, "second"))
    compared = compare_runs(*map(from_here, paths))
    return Answer.of(compared, ComparisonTable)


def calibrate(*, delta: float, **flags: Any) -> Answer:
    """Solve for the one of noise, epsilon, rounds and cohort (or rate) that is left out.

    `flags` are the other flags of `privfed calibrate`: `epsilon`, `noise_multiplier`, `rounds`,
    `sampling_rate`, `population`, `cohort`, `sampler`, `mechanism`, `protocol`, … Raises `Refused`
    where nothing, or more than one, is left to solve for.
    """
    from privfed.plan.calibration.question import CalibrationQuestion
    from privfed.plan.calibration.solving import solve
    from privfed.report.calibration import calibration_table

    solved = solve(CalibrationQuestion.of({"delta": delta, **flags}))
    return Answer.of(solved, calibration_table)


def audit(
    path: str | PathLike[str] | Sequence[str | PathLike[str]],
    accountant: str | None = None,
    head: str | None = None,
) -> Answer:
    """The ε that the run at `path` really spent, or several together, from their ledgers alone."""
    if isinstance(path, str | os.PathLike):
        return audited(as_path(path, "path"), accountant, head)
    from privfed.auditing.joint_audit import audit_together
    from privfed.report.audit import merged_table

    if not path:
        raise Refused("no run to audit; expected the path of one, or several")
    if head is not None:
        raise Refused("head is about one run; audit them one by one")
    return Answer.of(
        audit_together([as_path(each, "path") for each in path], accountant), merged_table
    )


def evaluate(path: str | PathLike[str], other: Any = None) -> Answer:
    """Score the model of the run at `path`: see `Run.evaluate`."""
    return opened(path).evaluate(other)


def predict(path: str | PathLike[str], rows: Any, out: str | Path | None = None) -> Any:
    """Predict `rows` by the model of the run at `path`: see `Run.predict`."""
    return opened(path).predict(rows, out)


def export(path: str | PathLike[str], to: str | Path, adapters: bool = False) -> Answer:
    """Write the model of the run at `path` for other programs: see `Run.export`."""
    return opened(path).export(to, adapters)


def opened(path: str | PathLike[str]) -> Run:
    """The run at `path` for one call, which answers with that path as it was given."""
    from privfed.api.run import Run
    from privfed.store.run_directory import RunDirectory

    return Run(RunDirectory.open(as_path(path, "path")), keeps_name=True)


def experiment(
    grid: str | Path,
    *,
    out: str | Path | None = None,
    jobs: int | None = None,
    retry: bool = False,
    dry_run: bool = False,
    progress: bool | None = None,
) -> Answer:
    """Run the grid in the file `grid`, each cell once, and draw its figures.

    The answer has how many cells are done, what they guarantee together, and as `rows` the table,
    a row for each cell and seed. `dry_run` says what would be run. Raises `Refused` where a cell
    of the grid cannot be read, and where none is done.
    """
    from privfed.api.going_on import is_shown
    from privfed.grid.cells import cells
    from privfed.grid.engine import run_grid
    from privfed.grid.load import load_grid
    from privfed.grid.pictures.drawing import draw_all
    from privfed.grid.planned_guarantee import estimate, outlook
    from privfed.grid.results import DONE, Files
    from privfed.report.console import console
    from privfed.report.grid import ExperimentProgress, experiment_table, outlook_table
    from privfed.report.notebook import silent

    path = Path(grid)
    loaded, files = load_grid(path), Files(path, Path(out) if out is not None else path.parent)
    processes = jobs or os.cpu_count() or 1
    if loaded.tunes_privately:
        return _tuned(files, loaded, processes, dry_run)
    if dry_run:
        planned = cells(files.grid, loaded)
        ahead = outlook(files, loaded, planned, retry)
        time = estimate(files.grid, planned, loaded, processes)
        return Answer({**ahead.to_json(planned), "time": time}, lambda: outlook_table(ahead), ahead)
    with ExperimentProgress(console(False) if is_shown(progress) else silent()) as observer:
        done = run_grid(files, loaded, processes, retry, observer)
    if not done.counts[DONE]:
        raise Refused(f"no cell of {path} is done; {done.files.table} says why")
    figures = draw_all(files, loaded.figure, loaded.axes, loaded.columns)
    facts = {**done.to_json(), "rows": _rows(files.table), "figures": list(map(str, figures))}
    return Answer(facts, lambda: experiment_table(done), done)


def _tuned(files: Files, grid: Grid, processes: int, dry_run: bool) -> Answer:
    """A private tuning, or what it would cost."""
    from privfed.grid.private_tuning import tune
    from privfed.grid.tuning_proposal import propose
    from privfed.report.grid import proposal_table, tuned_table

    proposal = propose(files, grid)
    if dry_run:
        return Answer.of(proposal, partial(proposal_table, processes=processes))
    return Answer.of(tune(files, proposal, processes), tuned_table)


def _rows(table: Path) -> list[dict[str, Any]]:
    """The rows of a table of results."""
    with io.TextIOWrapper(regular.opened(table), "utf-8", newline="") as file:
        return [dict(row) for row in csv.DictReader(file)]
