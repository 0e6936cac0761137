"""Functions of `privfed` other than training, which correspond to commands of the same name."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Mapping, Sequence
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
    from privfed.grid.cells import Cell
    from privfed.grid.grid import Grid
    from privfed.grid.results import Files


def runs(folder: str | PathLike[str] = "runs") -> Answer:
    """Lists the runs in a folder, up to three folders deep, as `privfed runs` does.

    Args:
      folder: the folder to search.

    Returns:
      `rows` with one entry per run, for `pandas.DataFrame(privfed.runs().rows)`, and
      `same_population`, the groups of runs over the same population.

    Raises:
      Refused: if there is no such folder.
    """
    from privfed.report.runs.listed import list_runs
    from privfed.report.runs.listing_table import RunsTable

    return Answer.of(list_runs(from_here(as_path(folder, "folder"))), RunsTable)


def compare(first: str | PathLike[str], second: str | PathLike[str]) -> Answer:
    """Compares two runs, as `privfed compare` does.

    Args:
      first: the directory of one run.
      second: the directory of the other.

    Returns:
      The `settings` that differ, the `runs` with guarantees and rounds, and their `joint` ε.

    Raises:
      Refused: for a path that is not a run.
      Broken: if the files of a run are broken.
    """
    from privfed.report.runs.compared import compare_runs
    from privfed.report.runs.comparison_table import ComparisonTable

    paths = (as_path(first, "first"), as_path(second, "second"))
    compared = compare_runs(*map(from_here, paths))
    return Answer.of(compared, ComparisonTable)


def calibrate(*, delta: float, **flags: Any) -> Answer:
    """Solves for noise, epsilon, rounds or cohort (or rate): the value that is left out.

    With `examples` and `batch`, compares the noise of sampling examples and of sampling clients.

    Args:
      delta: the delta of the guarantee.
      flags: the other flags of `privfed calibrate`: `epsilon`, `noise_multiplier`, `rounds`,
        `sampling_rate`, `population`, `cohort`, `sampler`, `mechanism`, `protocol`, …

    Returns:
      The solved value and the resulting guarantee, or the comparison.

    Raises:
      Refused: unless exactly one value is left to solve for, and for flags that are invalid,
        contradict each other or have no solution.
    """
    from privfed.plan.calibration.example_sampling import asks_for_sampling, compare_sampling
    from privfed.plan.calibration.question import CalibrationQuestion
    from privfed.plan.calibration.solving import solve
    from privfed.report.calibration import calibration_table, sampling_report

    question = CalibrationQuestion.of({"delta": delta, **flags})
    if asks_for_sampling(question):
        return Answer.of(compare_sampling(question), sampling_report)
    return Answer.of(solve(question), calibration_table)


def audit(
    path: str | PathLike[str] | Sequence[str | PathLike[str]],
    accountant: str | None = None,
    head: str | None = None,
) -> Answer:
    """Recomputes the ε spent by a run, or by several runs together, from their ledgers alone.

    Args:
      path: the directory of a run, or several directories.
      accountant: the accountant to use; by default the run's own, and for several runs "tightest".
      head: a recorded head of the ledger of one run, which detects truncation and changes.

    Returns:
      The values that `privfed audit --json` prints.

    Raises:
      Refused: if there is no run, the accountant is unknown, `head` is given for several runs, or
        they cannot be composed.
    """
    if isinstance(path, str | os.PathLike):
        return audited(as_path(path, "path"), accountant, head)
    from privfed.auditing.joint_audit import audit_together
    from privfed.report.audit import merged_table

    if not path:
        raise Refused(
            "no run is given; expected the path of a run directory to audit, or several paths"
        )
    if head is not None:
        raise Refused(
            f"head is for a single run, but {len(path)} runs are given; audit the runs one by one"
        )
    paths = [from_here(as_path(each, "path")) for each in path]
    return Answer.of(audit_together(paths, accountant), merged_table)


def evaluate(path: str | PathLike[str], other: Any = None) -> Answer:
    """Evaluates the model of the run at `path`: see `Run.evaluate`."""
    return opened(path).evaluate(other)


def predict(path: str | PathLike[str], rows: Any, out: str | Path | None = None) -> Any:
    """Predicts `rows` with the model of the run at `path`: see `Run.predict`."""
    return opened(path).predict(rows, out)


def export(path: str | PathLike[str], to: str | Path, adapters: bool = False) -> Answer:
    """Writes the model of the run at `path` for other programs: see `Run.export`."""
    return opened(path).export(to, adapters)


def opened(path: str | PathLike[str]) -> Run:
    """Returns the run at `path` for one call, whose answer names the path as it was given."""
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
    on_end: Callable[[dict[str, Any]], object] | None = None,
    progress: bool | None = None,
) -> Answer:
    """Executes the runs of a grid file, each cell of the grid once, and draws the grid's figures.

    Args:
      grid: the grid file (TOML).
      out: the folder of the results; by default the folder of the grid file.
      jobs: the number of processes; by default the number of processors.
      retry: whether failed and refused cells are run again.
      dry_run: whether the cells are only planned.
      on_end: called in this process with the result of each cell that this call runs or refuses:
        its values and seed, "status", and the summary or the "reason".
      progress: whether progress is shown; None: in terminals and notebooks.

    Returns:
      The numbers of cells by state, their joint guarantee, and the table as `rows`, one for each
      cell and seed. With `dry_run`, the plan; for private tuning, the released run.

    Raises:
      Refused: if the grid is invalid, or no cell succeeds; for `on_end` with private tuning.
    """
    from privfed.api.resuming import is_shown
    from privfed.api.rounds import refuse_no_function
    from privfed.grid.cells import cells
    from privfed.grid.engine import run_grid
    from privfed.grid.load import load_grid
    from privfed.grid.pictures.drawing import draw_all
    from privfed.grid.planned_guarantee import estimate, outlook
    from privfed.grid.results import DONE, Files
    from privfed.report.console import console
    from privfed.report.grid import ExperimentProgress, experiment_table, outlook_table
    from privfed.report.notebook import silent

    refuse_no_function("on_end", on_end, "the result of a cell")
    path = Path(grid)
    loaded, files = load_grid(path), Files(path, Path(out) if out is not None else path.parent)
    processes = jobs or os.cpu_count() or 1
    if loaded.tunes_privately:
        if on_end is not None:
            raise Refused(
                "on_end is given, but the results of a private tuning's candidates are secret; "
                "remove on_end="
            )
        return _tuned(files, loaded, processes, dry_run)
    if dry_run:
        planned = cells(files.grid, loaded)
        ahead = outlook(files, loaded, planned, retry)
        time = estimate(files.grid, planned, loaded, processes)
        return Answer({**ahead.to_json(planned), "time": time}, lambda: outlook_table(ahead), ahead)
    screen = console(False) if is_shown(progress) else silent()
    ended = partial(_call, on_end) if on_end else lambda *_: None
    with ExperimentProgress(screen, ended) as observer:
        done = run_grid(files, loaded, processes, retry, observer)
    if not done.counts[DONE]:
        raise Refused(f"no cell of {path} is done; see the reasons in {done.files.table}")
    figures = draw_all(files, loaded.figure, loaded.axes, loaded.columns)
    facts = {**done.to_json(), "rows": _rows(files.table), "figures": list(map(str, figures))}
    return Answer(facts, lambda: experiment_table(done), done)


def _call(
    on_end: Callable[[dict[str, Any]], object], cell: Cell, result: Mapping[str, Any]
) -> None:
    """Calls `on_end` with the values, seed and result of a cell that ended."""
    facts = {key: value for key, value in result.items() if key != "outcome"}
    on_end({**cell.values, "seed": cell.seed, **result.get("outcome", {}), **facts})


def _tuned(files: Files, grid: Grid, processes: int, dry_run: bool) -> Answer:
    """Executes private tuning, and returns its result; with `dry_run`, only its cost."""
    from privfed.grid.private_tuning import tune
    from privfed.grid.tuning_proposal import propose
    from privfed.report.grid import proposal_table, tuned_table

    proposal = propose(files, grid)
    if dry_run:
        return Answer.of(proposal, partial(proposal_table, processes=processes))
    return Answer.of(tune(files, proposal, processes), tuned_table)


def _rows(table: Path) -> list[dict[str, Any]]:
    """Returns the rows of the CSV file `table`, each as texts by column."""
    with io.TextIOWrapper(regular.opened(table), "utf-8", newline="") as file:
        return [dict(row) for row in csv.DictReader(file)]
