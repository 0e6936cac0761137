"""The cells of a grid: the product of its lists without exclusions, times seeds.

A cell is identified by its resolved configuration, never by its name: after an edit of the base or
a reordering of the grid, exactly the completed cells are found. The content of files (data, a
starting model) is not part of the identity.

The folder of a cell is named by its identity and holds its run directory and, once it ended, its
result.
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
from privfed.core.errors import Refused
from privfed.core.version import __version__
from privfed.grid.grid import AT_EDGE, Grid, Values, key_combinations
from privfed.grid.results import DONE, FAILED, REFUSED, Files, cell_of
from privfed.models.loss import Loss


@dataclass(frozen=True)
class Cell:
    """One run of a grid: the varied keys' `values`, and the seed.

    `config` is None if the configuration is refused, and `refusal` is the reason. `tuned` are the
    keys that tuning chose, and those at the edge of their options.
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
    """Returns every combination of values without exclusions. Raises `Refused` if none is left."""
    included = [values for values in grid.product() if not grid.excludes(values)]
    if not included:
        raise Refused(f"{path}: the exclusions leave no cell; remove some of them")
    return included


def cells(path: Path, grid: Grid) -> list[Cell]:
    """Returns all cells of the grid at `path`, seeds innermost; for a tuning, those to choose from.

    Raises `Refused` if no cell is left, or every one is refused for its configuration.
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
    """Returns the cells of a tuned grid.

    Args:
      path: the grid file.
      grid: the grid.
      choose: returns the tuned keys of a cell's values, or the reason why there are none.
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
    """Returns, for each cell of a tuned grid, all cells that tuning may choose."""
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
    """Returns the loss of each cell that is not refused, with its values as in tables."""
    base = _base(path, grid)
    losses = ((values, loss_of(_raw(base, grid, values))) for values in cells)
    return [
        ({key: cell_of(value) for key, value in values.items()}, loss)
        for values, loss in losses
        if loss is not None
    ]


def _base(path: Path, grid: Grid) -> Raw:
    """The run file that the grid names, as written; empty for the default run."""
    return read_raw(path.parent / grid.base) if grid.base else {}


def _at_edge(value: Any, options: list[Any]) -> bool:
    """Whether a better number may exist beyond the options; a switch has none."""
    numbers = [option for option in options if type(option) in (int, float)]
    return len(numbers) > 1 and value != 0 and value in (min(numbers), max(numbers))


def _distinct(path: Path, planned: list[Cell]) -> list[Cell]:
    """Returns `planned` if a cell is runnable and none occurs twice. Raises `Refused`."""
    if all(cell.config is None for cell in planned):
        raise Refused(
            f"{path}: every cell is refused; correct the keys of the first: {planned[0].refusal}"
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
    """The run of `values` and `seed`, or the reason why it is refused."""
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
    """The keys of the cell `values`. Raises `Refused`."""
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
"""A cell that has not ended: the machine has a problem, or another process runs it."""
Result = dict[str, Any]
"""Result of a cell: its "status", and its run's "outcome" or the "reason" for having none."""


def cells_folder(files: Files) -> Path:
    """Returns the folder that holds the folders of all cells."""
    return files.folder / "cells"


def folder_of(files: Files, cell: Cell) -> Path:
    """Returns the folder of one cell."""
    return cells_folder(files) / cell.name


def result_of(files: Files, cell: Cell, retry: bool) -> Result | None:
    """Returns the result of a cell; None if it has still to run, or to run again (`retry`)."""
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
