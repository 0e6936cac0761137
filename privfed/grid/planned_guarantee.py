"""Computes the joint guarantee of a grid before its cells run, and which cells will not run."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privfed.core.errors import PrivfedError, Refused
from privfed.core.parts import expected
from privfed.core.text import duration
from privfed.grid.cell_charges import CellCharges, charged, planned_charges, uncounted
from privfed.grid.cells import (
    Cell,
    Result,
    candidate_cells,
    cells_folder,
    folder_of,
    grid_points,
    result_of,
    tuned_cells,
)
from privfed.grid.grid import Grid, Values
from privfed.grid.joint_guarantee import Joint, joints
from privfed.grid.results import DONE, REFUSED, Files, measures_in, number_or_none
from privfed.grid.tables import tuning_measure
from privfed.run.check import check

_FINAL = (DONE, REFUSED)
"""Statuses that all runs of a tuning must have before a choice is made."""


def cells_after_tuning(
    files: Files, grid: Grid, tried: Sequence[Cell], results: Mapping[str, Result | None]
) -> list[Cell] | None:
    """Returns the cells that are run after tuning: those of the grid, with the chosen values.

    Returns None until every run of the tuning is done or refused.

    Args:
      files: the paths of the grid's tables.
      grid: the grid.
      tried: the cells from which tuning chooses.
      results: results of the cells `tried`, by name; None for a cell without a result.
    """
    if any(result is None or result["status"] not in _FINAL for result in results.values()):
        return None
    choose = functools.partial(best_options, grid, tried, results)
    return tuned_cells(files.grid, grid, choose)


def best_options(
    grid: Grid, tried: Sequence[Cell], results: Mapping[str, Result | None], values: Values
) -> Values | str:
    """Returns the values of the tuned keys with the best mean metric, or as text why there are
    none.

    The mean is over seeds; a run without the metric counts as infinitely bad.

    Args:
      grid: the grid.
      tried: the cells from which tuning chooses.
      results: results of the cells `tried`, by name.
      values: the combination of the varied keys' values for which to choose.
    """
    assert grid.tune is not None
    candidates = [cell for cell in tried if all(cell.values[k] == v for k, v in values.items())]
    loss = next((cell.config.loss for cell in candidates if cell.config), None)
    measure, lower = tuning_measure(grid.tune.by, grid.tune.lower_is_better, loss)
    scores: dict[str, list[float]] = {}
    options: dict[str, Values] = {}
    reason = "none of its tuning runs is done"
    for cell in candidates:
        result = results[cell.name] or {}
        choice = {key: cell.values[key] for key in grid.tuned_keys if key in cell.values}
        name = repr(choice)
        options[name] = choice
        score = number_or_none(result.get("outcome", {}).get(measure))
        worst = math.inf if lower else -math.inf
        scores.setdefault(name, []).append(worst if score is None else score)
        reason = str(result.get("reason", reason))
    means = {name: sum(reached) / len(reached) for name, reached in scores.items()}
    best = (min if lower else max)(means, key=lambda name: means[name])
    if not math.isfinite(means[best]):
        return f"none of its tuning runs is done; the last: {reason}"
    return options[best]


def refuse_unmeasured(by: str, result: Result) -> None:
    """Raises `Refused` if `result` is that of a completed run without the metric `by`.

    An empty `by` permits any run.
    """
    if not by or result["status"] != DONE:
        return
    measures = measures_in(result["outcome"])
    if by not in measures:
        raise Refused(
            f"tune.by is {by!r}, but these runs have no such measure; {expected(by, measures)}"
        )


_SAMPLED = 6
"""Number of cells whose time is estimated, from which that of the grid follows."""
_OVERHEAD = 0.5
"""Seconds that a cell takes in addition to training: loading, calibration, the ledger."""


def estimate(path: Path, planned: Sequence[Cell], grid: Grid, processes: int) -> str:
    """Returns a sentence with the estimated run time of a grid. Writes nothing.

    Args:
      path: the grid file.
      planned: the cells to run; the time of some of them, evenly spaced, is estimated.
      grid: the grid.
      processes: the number of worker processes.
    """
    runnable = [cell for cell in planned if cell.config is not None]
    step = max(len(runnable) // _SAMPLED, 1)
    seconds: list[float] = []
    refused: list[str] = []
    for cell in runnable[step // 2 :: step][:_SAMPLED]:
        assert cell.config is not None
        try:
            seconds.append(check(cell.config).forecast.seconds + _OVERHEAD)
        except Refused as refusal:
            refused.append(str(refusal))
    if not seconds:
        return f"{len(planned)} cells; all {len(refused)} that were tried are refused: {refused[0]}"
    measured = len(grid_points(path, grid)) * len(grid.seeds) if grid.tune else 0
    total = sum(seconds) / len(seconds) * (len(runnable) + measured) / processes
    tuning = (
        f"{len(planned)} cells to tune on, then {measured}"
        if grid.tune
        else f"{len(planned)} cells"
    )
    where = "1 process" if processes == 1 else f"{processes} processes"
    return (
        f"{tuning}, with {len(grid.seeds)} seeds: about {duration(total)} on {where} "
        f"(estimated from {len(seconds)} of them)"
    )


@dataclass(frozen=True)
class Outlook:
    """The joint guarantees of a grid under the assumption that each planned cell is completed.

    Attributes:
      joint: the joint guarantee for each population.
      excluded: for each cell that will not run, the reason, by the cell's name.
    """

    joint: tuple[Joint, ...]
    excluded: dict[str, str]

    def to_json(self, cells: Sequence[Cell]) -> dict[str, Any]:
        """Returns the object that `privfed experiment --dry-run --json` prints."""
        excluded = sum(1 for cell in cells if cell.name in self.excluded)
        joint = [joint.to_json() for joint in self.joint]
        return {"cells": len(cells), "excluded": excluded, "joint": joint}


def outlook(files: Files, grid: Grid, cells: Sequence[Cell], retry: bool) -> Outlook:
    """Computes the joint guarantees of `cells` and, if the grid tunes, of the cells run afterwards.

    A planned cell is charged with all its rounds, and a completed cell with its actual charges.
    Before tuning has chosen the values for a combination, the actual charges of all options are
    included; of their planned charges, the largest number of each event over the options.

    Args:
      files: the paths of the grid's tables.
      grid: the content of the grid file.
      cells: the cells of the grid; if it tunes, those from which tuning chooses.
      retry: whether cells that failed or were refused are run again.
    """
    excluded: dict[str, str] = {}
    charges: list[CellCharges] = []
    results = {cell.name: result_of(files, cell, retry) for cell in cells}
    tuned = cells_after_tuning(files, grid, cells, results) if grid.tune else None
    measured = candidate_cells(files.grid, grid) if tuned is None else [[cell] for cell in tuned]
    slots = [*([cell] for cell in cells), *measured]
    for options in slots:
        slot = "" if len(options) == 1 else f"tuned: {options[0].name}"
        for cell in options:
            charges += charged(cell, folder_of(files, cell), slot)
            try:
                if (result := result_of(files, cell, retry)) is None:
                    charges.append(planned_charges(cell, slot))
                elif result["status"] != DONE:
                    excluded[cell.name] = f"{result['status']}: {result['reason']}"
            except PrivfedError as error:
                excluded[cell.name] = f"{REFUSED}: {error}"
    counted = {cell.name for options in slots for cell in options}
    return Outlook(joints(charges, uncounted(cells_folder(files), counted)), excluded)
