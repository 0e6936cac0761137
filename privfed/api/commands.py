"""The calls beside training: what the other commands of the command line do."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accounting import regular
from privfed.api.answer import Answer, as_path, from_here
from privfed.api.going_on import is_shown
from privfed.api.training import load
from privfed.core.errors import Refused
from privfed.core.parts import expected

if TYPE_CHECKING:
    from privfed.grid.grid import Grid
    from privfed.grid.results import Files


def runs(folder: str | PathLike[str] = "runs") -> Answer:
    """The runs in `folder`, three folders deep: `rows` has one for each, as `privfed runs` does.

    `pandas.DataFrame(privfed.runs().rows)` is a table of them, and `same_people` says which are
    about the same people. Raises `Refused` where there is no such folder.
    """
    from privfed.report.runs.listed import list_runs
    from privfed.report.runs.listing_table import RunsTable

    listed = list_runs(from_here(as_path(folder, "folder")))
    return Answer(listed.to_json(), RunsTable(listed), listed)


def compare(first: str | PathLike[str], second: str | PathLike[str]) -> Answer:
    """Two runs side by side: `settings` that differ, `runs` with guarantees and rounds, `joint` ε.

    Raises `Refused` for a path that is no run, and `Broken` for a run that is broken.
    """
    from privfed.report.runs.compared import compare_runs
    from privfed.report.runs.comparison_table import ComparisonTable

    paths = [
        from_here(as_path(path, name)) for path, name in ((first, "first"), (second, "second"))
    ]
    compared = compare_runs(*paths)
    return Answer(compared.to_json(), ComparisonTable(compared), compared)


_WHOLE = frozenset(
    {
        *("population", "cohort", "cap", "separation", "slots", "groups", "bands", "buffers"),
        *("sites", "sites_per_client", "bits", "dimension", "minimum", "byzantine"),
    }
)
"""Flags of `privfed calibrate` that are counts."""


def calibrate(
    *,
    delta: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    rounds: int | None = None,
    sampling_rate: float | None = None,
    sampler: str = "poisson",
    mechanism: str = "gaussian",
    accountant: str = "tightest",
    **further: Any,
) -> Answer:
    """Solve for the one of noise, epsilon, rounds and cohort (or rate) that is left out.

    `further` are the other flags of `privfed calibrate`: `population`, `cohort`, `bands`,
    `protocol`, `sites`, `colluders`, … Raises `Refused` where nothing, or more than one, is left to
    solve for.
    """
    from privfed.plan.calibration.question import RUN_FILE_KEYS, CalibrationQuestion
    from privfed.plan.calibration.solving import solve
    from privfed.report.calibration import calibration_table

    flags = {*CalibrationQuestion.__dataclass_fields__, "sampling_rate"} - {"rate"}
    if unknown := sorted(further.keys() - flags):
        meant = RUN_FILE_KEYS.get(unknown[0])
        instead = f"it is {meant!r} here" if meant else expected(unknown[0], [*flags])
        raise Refused(f"unknown argument {unknown[0]!r}; {instead}")
    numbers = {"delta": delta, "epsilon": epsilon, "noise_multiplier": noise_multiplier}
    numbers |= {"sampling_rate": sampling_rate, "rounds": rounds}
    for name, value in numbers.items():
        counted = name == "rounds"
        if value is not None and not isinstance(value, Integral if counted else Real):
            kind = "a whole number" if counted else "a number"
            raise Refused(f"{name} is {value!r}; expected {kind}")
    for name in _WHOLE & further.keys():
        if further[name] is not None and not isinstance(further[name], Integral):
            raise Refused(f"{name} is {further[name]!r}; expected a whole number")
    question = CalibrationQuestion(
        mechanism,
        sampler,
        delta,
        accountant,
        rate=sampling_rate,
        rounds=rounds,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        **further,
    )
    solved = solve(question)
    return Answer(solved.to_json(), calibration_table(solved), solved)


def audit(
    path: str | PathLike[str] | Sequence[str | PathLike[str]],
    accountant: str | None = None,
    head: str | None = None,
) -> Answer:
    """The ε that the run at `path` really spent, or several together, from their ledgers alone."""
    if isinstance(path, str | os.PathLike):
        return load(path).audit(accountant, head)
    from privfed.auditing.joint_audit import audit_together
    from privfed.report.audit import merged_table

    if not path:
        raise Refused("no run to audit; expected the path of one, or several")
    if head is not None:
        raise Refused("head is about one run; audit them one by one")
    merged = audit_together([from_here(as_path(each, "path")) for each in path], accountant)
    return Answer(merged.to_json(), merged_table(merged), merged)


def evaluate(path: str | PathLike[str], other: Any = None) -> Answer:
    """Score the model of the run at `path`: see `Run.evaluate`."""
    return load(path).evaluate(other)


def predict(path: str | PathLike[str], rows: Any, out: str | Path | None = None) -> Any:
    """Predict `rows` by the model of the run at `path`: see `Run.predict`."""
    return load(path).predict(rows, out)


def export(path: str | PathLike[str], to: str | Path, adapters: bool = False) -> Answer:
    """Write the model of the run at `path` for other programs: see `Run.export`."""
    return load(path).export(to, adapters)


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
        return Answer({**ahead.to_json(planned), "time": time}, outlook_table(ahead), ahead)
    with ExperimentProgress(console(False) if is_shown(progress) else silent()) as observer:
        done = run_grid(files, loaded, processes, retry, observer)
    if not done.counts[DONE]:
        raise Refused(f"no cell of {path} is done; {done.files.table} says why")
    figures = draw_all(files, loaded.figure, loaded.axes, loaded.columns)
    facts = {**done.to_json(), "rows": _rows(files.table), "figures": list(map(str, figures))}
    return Answer(facts, experiment_table(done), done)


def _tuned(files: Files, grid: Grid, processes: int, dry_run: bool) -> Answer:
    """A private tuning, or what it would cost."""
    from privfed.grid.private_tuning import tune
    from privfed.grid.tuning_proposal import propose
    from privfed.report.grid import proposal_table, tuned_table

    proposal = propose(files, grid)
    if dry_run:
        return Answer(proposal.to_json(), proposal_table(proposal, processes), proposal)
    tuned = tune(files, proposal, processes)
    return Answer(tuned.to_json(), tuned_table(tuned), tuned)


def _rows(table: Path) -> list[dict[str, Any]]:
    """The rows of a table of results."""
    with io.TextIOWrapper(regular.opened(table), "utf-8", newline="") as file:
        return [dict(row) for row in csv.DictReader(file)]
