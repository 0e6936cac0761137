"""The cells of a grid: its runs, as the product of lists, less what is excluded, times seeds.

A cell is known by its resolved configuration, never by its name: an edited base or a reordered grid
finds what was already done, and nothing else. What files hold (data, a start) is not part of it.

Where the cells of a grid lie, and how each of them ended.

A cell's folder is named by its identity and holds its run directory and, once it ended, its result.
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

    `config` is None where the configuration is refused, and `refusal` says why. `tuned` are the
    keys that tuning chose, and which of them lie at the edge of what was tried.
    """

    values: Values
    seed: int
    config: Config | None
    refusal: str | None
    tuned: Values = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        """The cell's identity: a hash of the whole configuration, or of what it was to be."""
        identity: Any = self.config.values() if self.config else [dict(self.values), self.seed]
        text = json.dumps(identity, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:20]


def grid_points(path: Path, grid: Grid) -> list[dict[str, Any]]:
    """Every combination of what varies, less what is excluded. Raises `Refused` for none."""
    included = [values for values in grid.product() if not grid.excludes(values)]
    if not included:
        raise Refused(f"{path}: the exclusions leave no cell")
    return included


def cells(path: Path, grid: Grid) -> list[Cell]:
    """All cells of the grid at `path`, seeds innermost; where it tunes, those to choose from.

    Raises `Refused` where no cell is left, or every one is refused for its configuration.
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
    """The cells of a grid that tunes, once `choose` knows the tuned keys of each, or why not."""
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
    """The cells of a grid that tunes, before it has: for each, all that tuning may choose."""
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
    """The loss of each of `cells` that is not refused, beside its values as tables hold them."""
    base = _base(path, grid)
    losses = ((values, loss_of(_raw(base, grid, values))) for values in cells)
    return [
        ({key: cell_of(value) for key, value in values.items()}, loss)
        for values, loss in losses
        if loss is not None
    ]


def _base(path: Path, grid: Grid) -> Raw:
    """The run file that the grid names, as written; nothing for the default run."""
    return read_raw(path.parent / grid.base) if grid.base else {}


def _at_edge(value: Any, options: list[Any]) -> bool:
    """Whether a better number may lie beyond what was tried; a switch has nothing beyond."""
    numbers = [option for option in options if type(option) in (int, float)]
    return len(numbers) > 1 and value != 0 and value in (min(numbers), max(numbers))


def _distinct(path: Path, planned: list[Cell]) -> list[Cell]:
    """`planned`, where it holds something to run, and nothing twice. Raises `Refused`."""
    if all(cell.config is None for cell in planned):
        raise Refused(f"{path}: every cell is refused; the first: {planned[0].refusal}")
    by_name: dict[str, Cell] = {}
    for cell in planned:
        twin = by_name.setdefault(cell.name, cell)
        if twin is not cell:
            raise Refused(
                f"{path}: {dict(twin.values)} and {dict(cell.values)} are one and the same "
                "configuration; keep one of them"
            )
    return planned


def _cell(base: Raw, grid: Grid, values: Values, seed: int) -> Cell:
    """The run of `values` and `seed`, or why it is refused."""
    try:
        raw = _raw(base, grid, values)
        assign(raw, "run.seed", seed)
        for key, value in grid.settings(values).items():
            if value_at(raw, key) != value:
                raise Refused(f"another key of this grid replaces {key}; vary one of them")
        return Cell(values, seed, assembled(raw), None)
    except Refused as refused:
        return Cell(values, seed, None, str(refused))


def _raw(base: Raw, grid: Grid, values: Values) -> Raw:
    """The keys of the cell `values`. Raises `Refused`."""
    raw: Raw = {section: dict(keys) for section, keys in base.items()}
    settings = grid.settings(values)
    # Keys that name parts first: naming another drops the keys that only the former one knew.
    for key in sorted(settings, key=lambda key: not _names_a_part(key)):
        assign(raw, key, settings[key])
    return raw


def _names_a_part(key: str) -> bool:
    section, _, name = key.rpartition(".")
    return section in SECTIONS and name in SECTIONS[section].parts


STOPPED, WAITING = "stopped", "waiting"
"""A cell that has not ended: the machine is in trouble, or another process is at it."""
Result = dict[str, Any]
"""How a cell ended: its "status", and its run's "outcome" or the "reason" why there is none."""


def cells_folder(files: Files) -> Path:
    """The folder that holds a folder for each cell."""
    return files.folder / "cells"


def folder_of(files: Files, cell: Cell) -> Path:
    """The folder of one cell."""
    return cells_folder(files) / cell.name


def result_of(files: Files, cell: Cell, retry: bool) -> Result | None:
    """How a cell ended; None where it has still to run, or to run again (`retry`)."""
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
