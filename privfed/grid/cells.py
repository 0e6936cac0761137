"""The cells of a grid: all combinations of values that are not excluded, each for every seed.

A hash of its resolved configuration (with the seed) identifies a cell. After the run file or the
grid was edited, results of cells with unchanged configurations are therefore used again. The
content of files (data, an initial model) is not part of the identity.

The folder of a cell is named by its identity. It contains the run directory and, once the cell
ended, its result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from accounting import regular
from accounting.documents import from_json
from privfed.config.assembly import assembled, loss_of
from privfed.config.config import Config, Raw
from privfed.config.overrides import assign, value_at
from privfed.config.reading import read_raw
from privfed.config.sections import SECTIONS
from privfed.core import __version__
from privfed.core.errors import Refused
from privfed.grid.grid import AT_EDGE, Grid, Values, key_combinations
from privfed.grid.results import DONE, FAILED, REFUSED, Files, cell_of
from privfed.models.loss import Loss


@dataclass(frozen=True)
class Cell:
    """One run of a grid: a combination of values and a seed.

    Attributes:
      values: the value of each varied key; in a tuning, also of each tuned key.
      seed: the seed.
      config: the configuration; None if it is refused.
      refusal: the reason for the refusal; None if there is a configuration.
      tuned: the values that tuning chose, by key; the value of "at_edge" lists the keys whose
        chosen value is the smallest or largest option and not 0. Empty before the choice.
    """

    values: Values
    seed: int
    config: Config | None
    refusal: str | None
    tuned: Values = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        """The cell's identity: a hash of its configuration, or of a refused cell's values."""
        identity: Any = self.config.values() if self.config else [dict(self.values), self.seed]
        text = json.dumps(identity, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:20]


def grid_points(path: Path, grid: Grid) -> list[dict[str, Any]]:
    """Returns every combination of the varied keys' values that is not excluded.

    Raises `Refused` if all are excluded.
    """
    included = [values for values in grid.product() if not grid.excludes(values)]
    if not included:
        raise Refused(f"{path}: the exclusions leave no cell; remove some of them")
    return included


def cells(path: Path, grid: Grid) -> list[Cell]:
    """Returns the cells of a grid; if the grid tunes, the cells from which tuning chooses.

    Args:
      path: the grid file.
      grid: the content of the grid file.

    Returns:
      The cells of one combination after another, each for all seeds: `tune.seeds` if the grid tunes
      and the tuning is not private, otherwise `seeds`.

    Raises:
      Refused: if the exclusions leave no cell, every configuration is refused, or two cells have
        the same configuration.
    """
    base = _base(path, grid)
    on_others = grid.tune is not None and not grid.tune.private
    seeds = grid.tune.seeds if grid.tune and on_others else grid.seeds
    return _distinct(
        path,
        [
            _cell(base, grid, {**values, **tried}, seed)
            for values in grid_points(path, grid)
            for tried in key_combinations(grid.options(values))
            for seed in seeds
        ],
    )


def tuned_cells(path: Path, grid: Grid, choose: Callable[[Values], Values | str]) -> list[Cell]:
    """Returns the cells that are run after tuning: those of the grid, with the chosen values.

    Args:
      path: the grid file.
      grid: the content of the grid file.
      choose: returns, for a combination of the varied keys' values, the chosen values of the tuned
        keys, or as text the reason why there are none.

    Raises:
      Refused: for the same reasons as `cells`.
    """
    base, planned = _base(path, grid), []
    for values in grid_points(path, grid):
        choice = choose(values)
        for seed in grid.seeds:
            if isinstance(choice, str):
                planned.append(Cell(values, seed, None, choice))
                continue
            options = grid.options(values)
            edges = [key for key in choice if _at_edge(choice[key], options[key])]
            cell = _cell(base, grid, {**values, **choice}, seed)
            tuned = {**choice, AT_EDGE: " ".join(edges)}
            planned.append(replace(cell, values=values, tuned=tuned))
    return _distinct(path, planned)


def candidate_cells(path: Path, grid: Grid) -> list[list[Cell]]:
    """Returns, for each combination and seed of a grid, the cells of which tuning will choose one.

    Empty if the grid does not tune.
    """
    if grid.tune is None:
        return []
    base = _base(path, grid)
    return [
        [_cell(base, grid, {**values, **tried}, seed) for tried in key_combinations(options)]
        for values in grid_points(path, grid)
        for options in [grid.options(values)]
        for seed in grid.seeds
    ]


def losses_of(path: Path, grid: Grid, cells: Sequence[Values]) -> list[tuple[Values, Loss]]:
    """Returns the values of each cell, as `cell_of` writes them in tables, and the cell's loss.

    Cells whose loss is not known are left out.

    Args:
      path: the grid file.
      grid: the content of the grid file.
      cells: the values of each cell.
    """
    base = _base(path, grid)
    losses = ((values, loss_of(_raw(base, grid, values))) for values in cells)
    return [
        ({key: cell_of(value) for key, value in values.items()}, loss)
        for values, loss in losses
        if loss is not None
    ]


def _base(path: Path, grid: Grid) -> Raw:
    """Returns the content of the run file that the grid names; empty if it names none."""
    return read_raw(path.parent / grid.base) if grid.base else {}


def _at_edge(value: Any, options: list[Any]) -> bool:
    """Whether `value` is the smallest or largest of several numbers, and not 0.

    A better value may then exist beyond the options. (The value 0 usually switches a feature off.)
    """
    numbers = [option for option in options if type(option) in (int, float)]
    return len(numbers) > 1 and value != 0 and value in (min(numbers), max(numbers))


def _distinct(path: Path, planned: list[Cell]) -> list[Cell]:
    """Returns `planned` unchanged.

    Raises `Refused` if every cell is refused, or if two cells have the same configuration.
    """
    if all(cell.config is None for cell in planned):
        raise Refused(
            f"{path}: every cell is refused; correct the keys; the first cell: {planned[0].refusal}"
        )
    by_name: dict[str, Cell] = {}
    for cell in planned:
        twin = by_name.setdefault(cell.name, cell)
        if twin is not cell:
            raise Refused(
                f"{path}: {dict(twin.values)} and {dict(cell.values)} give the same configuration; "
                "keep one of the two"
            )
    return planned


def _cell(base: Raw, grid: Grid, values: Values, seed: int) -> Cell:
    """Returns the cell of `values` and `seed`; if its configuration is refused, with the reason."""
    try:
        raw = _raw(base, grid, values)
        assign(raw, "run.seed", seed)
        for key, value in grid.settings(values).items():
            if value_at(raw, key) != value:
                raise Refused(
                    f"{key} is {value!r}, but another key of this grid replaces or removes it; "
                    "vary only one of the two"
                )
        return Cell(values, seed, assembled(raw), None)
    except Refused as refused:
        return Cell(values, seed, None, str(refused))


def _raw(base: Raw, grid: Grid, values: Values) -> Raw:
    """Returns the content of a run file: `base` with the settings of `values`.

    Raises `Refused` for an unknown key.
    """
    raw: Raw = {section: dict(keys) for section, keys in base.items()}
    settings = grid.settings(values)
    # Keys that name parts first: a new name removes the keys that only the former part defines.
    for key in sorted(settings, key=lambda key: not _names_a_part(key)):
        assign(raw, key, settings[key])
    return raw


def _names_a_part(key: str) -> bool:
    section, _, name = key.rpartition(".")
    return section in SECTIONS and name in SECTIONS[section].parts


STOPPED, WAITING = "stopped", "waiting"
"""Statuses of a cell that has not ended: because the machine has a problem, or because another
process runs the cell."""
Result = dict[str, Any]
"""Result of a cell: its "status", and the "outcome" of its run or the "reason" why there is none.
"""


def cells_folder(files: Files) -> Path:
    """Returns the folder that contains the folder of each cell."""
    return files.folder / "cells"


def folder_of(files: Files, cell: Cell) -> Path:
    """Returns the folder of one cell."""
    return cells_folder(files) / cell.name


def result_of(files: Files, cell: Cell, retry: bool) -> Result | None:
    """Returns the stored result of a cell; None if the cell has to be run.

    With `retry`, a cell that failed, or was refused when it was run, has to be run again.

    For a cell without a configuration, the status is "refused".
    """
    if cell.config is None:
        return {"status": REFUSED, "reason": cell.refusal, "version": __version__}
    path = folder_of(files, cell) / "result.json"
    try:
        result = from_json(regular.read_text(path))
    except (OSError, ValueError):
        return None
    if not isinstance(result, dict) or result.get("status") not in (DONE, REFUSED, FAILED):
        return None
    if result["status"] == DONE:
        return result if isinstance(result.get("outcome"), dict) else None
    return None if retry else result
