"""What tuning chooses: of the options that were tried for a cell, those with the best mean."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

from privfed.core.errors import Refused
from privfed.core.parts import expected
from privfed.grid.cells import Cell, Result, tuned_cells
from privfed.grid.grid import Grid, Values
from privfed.grid.results import DONE, REFUSED, Files, measures_in, number_or_none
from privfed.grid.tables import tuning_measure

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
