"""What a grid's cells will guarantee together, before they run; and which of them will not run."""

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
"""How a cell that is tuned on may end, for the choice to be one between all of them."""


def cells_after_tuning(
    files: Files, grid: Grid, tried: Sequence[Cell], results: Mapping[str, Result | None]
) -> list[Cell] | None:
    """The cells of a grid that tunes, where all that it has `tried` ended; None before.

    `results` are those of `tried`, by the cells' names.
    """
    if any(result is None or result["status"] not in _FINAL for result in results.values()):
        return None
    choose = functools.partial(best_options, grid, tried, results)
    return tuned_cells(files.grid, grid, choose)


def best_options(
    grid: Grid, tried: Sequence[Cell], results: Mapping[str, Result | None], values: Values
) -> Values | str:
    """The tuned keys with the best mean over seeds for the cell `values`, or why there are none.

    A run without the measure counts as the worst.
    """
    assert grid.tune is not None
    candidates = [cell for cell in tried if all(cell.values[k] == v for k, v in values.items())]
    loss = next((cell.config.loss for cell in candidates if cell.config), None)
    measure, lower = tuning_measure(grid.tune.by, grid.tune.lower_is_better, loss)
    scores: dict[str, list[float]] = {}
    options: dict[str, Values] = {}
    reason = "none of what was tried for it is done"
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
        return f"nothing that was tried to tune it is done; the last: {reason}"
    return options[best]


def refuse_unmeasured(by: str, result: Result) -> None:
    """Raises `Refused` where a run that is done has no measure called `by`."""
    if not by or result["status"] != DONE:
        return
    measures = measures_in(result["outcome"])
    if by not in measures:
        raise Refused(f"tune.by is {by!r}, which is no measure; {expected(by, measures)}")


_SAMPLED = 6
"""Cells that are measured."""
_OVERHEAD = 0.5
"""Seconds a cell takes beside training: loading, calibrating, the ledger."""


def estimate(path: Path, planned: Sequence[Cell], grid: Grid, processes: int) -> str:
    """How long the grid takes, measured on a few of its cells, evenly chosen. Writes nothing."""
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
        return f"{len(planned)} cells; none of {len(refused)} tried would run: {refused[0]}"
    measured = len(grid_points(path, grid)) * len(grid.seeds) if grid.tune else 0
    total = sum(seconds) / len(seconds) * (len(runnable) + measured) / processes
    tuning = (
        f"{len(planned)} cells to tune on, then {measured}"
        if grid.tune
        else f"{len(planned)} cells"
    )
    where = "1 process" if processes == 1 else f"{processes} processes"
    return (
        f"{tuning}, {len(grid.seeds)} seeds included: about {duration(total)} on {where} "
        f"(measured on {len(seconds)} of them)"
    )


@dataclass(frozen=True)
class Outlook:
    """What a grid's cells will guarantee together, by population, if each that is to run ends.

    `excluded` says by a cell's name why it will not run.
    """

    joint: tuple[Joint, ...]
    excluded: dict[str, str]

    def to_json(self, cells: Sequence[Cell]) -> dict[str, Any]:
        """The object that `privfed experiment --dry-run --json` prints."""
        excluded = sum(1 for cell in cells if cell.name in self.excluded)
        joint = [joint.to_json() for joint in self.joint]
        return {"cells": len(cells), "excluded": excluded, "joint": joint}


def outlook(files: Files, grid: Grid, cells: Sequence[Cell], retry: bool) -> Outlook:
    """What `cells` and, where the grid tunes on these, the cells measured then will guarantee.

    A cell that is to run counts with all its rounds, one that ended with what it was charged. Until
    tuning has chosen, what was charged counts for each of its options, and of what is still to be
    charged each event as often as for any of them.
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
