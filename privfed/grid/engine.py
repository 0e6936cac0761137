"""Runs every cell of a grid once, in parallel processes; resumes after an interruption.

The process that runs a cell writes its result to the cell's folder, atomically. Completed cells are
therefore never repeated or lost, and interrupted cells are resumed from their run directories.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from accounting.documents import encoded
from accounting.durable import make_folder
from privfed.core import __version__
from privfed.core.errors import Refused
from privfed.grid.cell_charges import charged, uncounted
from privfed.grid.cell_job import Job, run_cell
from privfed.grid.cells import (
    STOPPED,
    WAITING,
    Cell,
    Result,
    cells,
    cells_folder,
    folder_of,
    result_of,
)
from privfed.grid.grid import Grid
from privfed.grid.joint_guarantee import Joint, joints
from privfed.grid.planned_guarantee import cells_after_tuning, refuse_unmeasured
from privfed.grid.process_pool import Ended, WorkerDied, work
from privfed.grid.results import DONE, FAILED, REFUSED, Files
from privfed.grid.tables import write_cells
from privfed.store.folders import held_alone


class CellObserver(Protocol):
    """An observer of an experiment's progress."""

    def begin(self, total: int, done: int, processes: int) -> None:
        """Called before cells run; `done` of `total` cells have results from earlier calls."""

    def started(self, cell: Cell) -> None:
        """Called when `cell` starts."""

    def ended(self, cell: Cell, result: Result) -> None:
        """Called when `cell` has ended with `result`."""


@dataclass(frozen=True)
class Experiment:
    """The state of a grid after a call of `run_grid`.

    Attributes:
      files: the paths of the grid's tables, or of its tuning's tables while the tuning is
        incomplete.
      counts: number of cells by status, and of all cells under "cells"; cells without a result
        count as "waiting".
      joint: the joint guarantee for each population, from the ledgers of all cells, including those
        of the tuning.
    """

    files: Files
    counts: dict[str, int]
    joint: tuple[Joint, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `privfed experiment --json` prints."""
        return {
            **self.counts,
            "joint": encoded(self.joint),
            "table": str(self.files.table),
            "summary": str(self.files.summary),
        }


def run_grid(
    files: Files, grid: Grid, processes: int, retry: bool, observer: CellObserver
) -> Experiment:
    """Runs the cells of `grid` that have no result, and writes the tables, even if interrupted.

    Args:
      files: the paths of the grid's tables.
      grid: the grid.
      processes: the number of worker processes.
      retry: whether cells that failed or were refused are run again.
      observer: receives the progress.

    Returns:
      The state of the grid after this call.

    Raises:
      Refused: if another process runs this grid, no cell can be run, the machine has a problem
        (such as a full disk), or completed runs lack the metric of the tuning.
    """
    make_folder(cells_folder(files))
    with _alone(files):
        tried: list[Cell] = []
        measured = cells(files.grid, grid)
        if grid.tune:
            tried, keys = measured, [*grid.keys, *grid.tuned_keys]
            check = functools.partial(refuse_unmeasured, grid.tune.by)
            results = _complete(files.tuning, keys, tried, processes, retry, observer, check)
            tuned = cells_after_tuning(files, grid, tried, results)
            if tuned is None:
                return Experiment(files.tuning, _counts(tried, results), _joint(files, tried))
            measured = tuned
        joint = functools.partial(_joint, files, [*tried, *measured])
        results = _complete(
            files, grid.columns, measured, processes, retry, observer, joint_guarantees=joint
        )
    return Experiment(files, _counts(measured, results), joint())


def _joint(files: Files, cells: Sequence[Cell]) -> tuple[Joint, ...]:
    """Returns joint guarantees from the ledgers of `cells`, even those without a result."""
    charges = (charge for cell in cells for charge in charged(cell, folder_of(files, cell)))
    return joints(charges, uncounted(cells_folder(files), {cell.name for cell in cells}))


def _complete(
    files: Files,
    keys: Sequence[str],
    cells: Sequence[Cell],
    processes: int,
    retry: bool,
    observer: CellObserver,
    check: Callable[[Result], None] = lambda result: None,
    joint_guarantees: Callable[[], Sequence[Joint]] = tuple,
) -> dict[str, Result | None]:
    """Runs the cells without a result and writes tables, even if interrupted.

    `check` receives each result as soon as it is known, and may raise `Refused`. `joint_guarantees`
    computes the joint guarantees for the table when it is written.

    Returns:
      The result of each cell, by the cell's name; None for a cell without a result.
    """
    results = {cell.name: result_of(files, cell, retry) for cell in cells}
    todo = {cell.name: cell for cell in cells if results[cell.name] is None}
    refused = [cell for cell in cells if cell.config is None]
    observer.begin(len(cells), len(cells) - len(todo) - len(refused), processes)
    for cell in refused:
        observer.started(cell)
        observer.ended(cell, results[cell.name] or {})
    try:
        for result_before in results.values():
            if result_before is not None:
                check(result_before)
        for cell, result in _run(files, todo, processes, retry, observer):
            results[cell.name] = result
            check(result)
    except BaseException:
        with contextlib.suppress(OSError):  # report the first error
            write_cells(files, keys, cells, results, joint_guarantees())
        raise
    write_cells(files, keys, cells, results, joint_guarantees())
    return results


def _run(
    files: Files, todo: dict[str, Cell], processes: int, retry: bool, observer: CellObserver
) -> Iterator[tuple[Cell, Result]]:
    """Runs the cells `todo` in `processes` processes; yields each cell with its result when it
    ends.
    """
    jobs = [
        Job(name, cell.config.values(), str(folder_of(files, cell)), retry)
        for name, cell in todo.items()
        if cell.config is not None
    ]
    for event in work(run_cell, jobs, processes):
        cell = todo[event.job.name]
        if not isinstance(event, Ended):
            observer.started(cell)
            continue
        result = event.result
        if isinstance(result, WorkerDied):
            # A result that the process wrote before it died counts; otherwise nothing is stored.
            died = {"status": FAILED, "reason": str(result), "version": __version__}
            result = result_of(files, cell, retry=True) or died
        if result["status"] == STOPPED:
            raise Refused(
                f"{result['reason']}; no result is lost: correct the cause, and repeat the command "
                "to resume"
            )
        observer.ended(cell, result)
        yield cell, result


def _counts(cells: Sequence[Cell], results: Mapping[str, Result | None]) -> dict[str, int]:
    counts = {"cells": len(cells), DONE: 0, REFUSED: 0, FAILED: 0, WAITING: 0}
    for cell in cells:
        result = results[cell.name]
        counts[result["status"] if result else WAITING] += 1
    return counts


def _alone(files: Files) -> contextlib.AbstractContextManager[None]:
    """Returns a context that locks the folder of cells. Raises `Refused` if another process has
    locked it.
    """
    taken = Refused(
        f"the cells of {files.folder} are being run by another process; wait for that process to "
        "end"
    )
    return held_alone(cells_folder(files), taken)
