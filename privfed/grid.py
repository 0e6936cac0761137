"""A grid: many runs from one file, as the product of lists, less what is excluded, times seeds.

A cell is known by its resolved configuration, never by its name: an edited base or a reordered grid
finds what was already done, and nothing else. What files hold (data, a start) is not part of it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from privfed.config import Config, Raw, assembled, assign, read_raw, read_toml
from privfed.errors import Refused
from privfed.figures import Figure, check_figures
from privfed.parts import Part, expected
from privfed.sections import SECTIONS

Values = Mapping[str, Any]
_MEASURED = 6
_OVERHEAD = 0.5
"""Seconds a cell takes beside training: loading, calibrating, the ledger."""


@dataclass(frozen=True)
class Cell:
    """One run of a grid: the varied keys' `values`, and the seed.

    `config` is None where the configuration is refused, and `refusal` says why.
    """

    values: Values
    seed: int
    config: Config | None
    refusal: str | None

    @property
    def name(self) -> str:
        """Its identity: a hash of the whole configuration, or of what it was to be."""
        facts: Any = self.config.values() if self.config else [dict(self.values), self.seed]
        text = json.dumps(facts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:20]


class Grid(Part):
    """A grid file. `base` is a run file beside it; empty: the default run."""

    base: str = ""
    seeds: list[Annotated[int, Field(ge=0, lt=2**63)]] = Field([0], min_length=1)
    grid: dict[str, list[Any]] = {}
    exclude: list[dict[str, Any]] = []
    figure: list[Figure] = []

    @property
    def keys(self) -> list[str]:
        return list(self.grid)


def load_grid(path: Path) -> Grid:
    """Read a grid file. Raises `Refused` with what is wrong in it."""
    document = read_toml(path, "grid")
    try:
        grid = Grid.model_validate(document)
    except ValidationError as error:
        raise Refused("\n".join(_problem(path, problem) for problem in error.errors())) from error
    _refuse_contradictions(path, grid)
    check_figures(grid.figure, grid.grid)
    return grid


def _problem(path: Path, problem: Any) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"{path}: unknown key {key!r}; {expected(key, list(Grid.model_fields))}"
    return f"{path}: {key} is {problem.get('input')!r}: {problem['msg'].lower()}"


def _refuse_contradictions(path: Path, grid: Grid) -> None:
    if len(set(grid.seeds)) < len(grid.seeds):
        raise Refused(f"{path}: seeds = {grid.seeds} names one twice; name each seed once")
    for key, values in grid.grid.items():
        section, dot, _ = key.rpartition(".")
        if not dot or section not in SECTIONS:
            raise Refused(
                f"{path}: grid.{key!r} is no section.key; {expected(section, list(SECTIONS))}"
            )
        if key == "run.seed":
            raise Refused(f"{path}: grid.'run.seed' is what seeds = [...] is for")
        if not values:
            raise Refused(
                f"{path}: grid.{key!r} is an empty list, so there is no cell; name values"
            )
        if any(values.count(value) > 1 for value in values):
            raise Refused(f"{path}: grid.{key!r} = {values} names a value twice; name each once")
    for number, rule in enumerate(grid.exclude, start=1):
        unknown = [key for key in rule if key not in grid.grid]
        if unknown or not rule:
            raise Refused(
                f"{path}: exclusion {number} names {unknown or 'nothing'}, which the grid does not "
                f"vary; {expected(unknown[0] if unknown else '', grid.keys)}"
            )
        if not any(_excluded(values, rule) for values in _product(grid)):
            raise Refused(
                f"{path}: exclusion {number}, {rule}, matches no cell; correct its values"
            )


def _product(grid: Grid) -> Iterator[dict[str, Any]]:
    for chosen in itertools.product(*grid.grid.values()):
        yield dict(zip(grid.grid, chosen, strict=True))


def _excluded(values: Values, rule: Values) -> bool:
    """Whether every key of `rule` holds; a list there means any of its values."""
    return all(
        values[key] in wanted if isinstance(wanted, list) else values[key] == wanted
        for key, wanted in rule.items()
    )


def cells(path: Path, grid: Grid) -> list[Cell]:
    """All cells of the grid at `path`, seeds innermost.

    Raises `Refused` where no cell is left, or every one is refused for its configuration.
    """
    base = read_raw(path.parent / grid.base) if grid.base else {}
    kept = [v for v in _product(grid) if not any(_excluded(v, rule) for rule in grid.exclude)]
    if not kept:
        raise Refused(f"{path}: the exclusions leave no cell")
    found = [_cell(base, values, seed) for values in kept for seed in grid.seeds]
    if all(cell.config is None for cell in found):
        raise Refused(f"{path}: every cell is refused; the first: {found[0].refusal}")
    known: dict[str, Cell] = {}
    for cell in found:
        twin = known.setdefault(cell.name, cell)
        if twin is not cell:
            raise Refused(
                f"{path}: {dict(twin.values)} and {dict(cell.values)} are one and the same "
                "configuration; keep one of them"
            )
    return found


def _cell(base: Raw, values: Values, seed: int) -> Cell:
    raw: Raw = {section: dict(keys) for section, keys in base.items()}
    try:
        # Keys that name parts first: naming another drops the keys that only the former one knew.
        for key in sorted(values, key=lambda key: not _names_a_part(key)):
            assign(raw, key, values[key])
        assign(raw, "run.seed", seed)
        for key, value in values.items():
            section, _, name = key.rpartition(".")
            if raw[section].get(name) != value:
                raise Refused(f"another key of this grid replaces {key}; vary one of them")
        return Cell(values, seed, assembled(raw), None)
    except Refused as refused:
        return Cell(values, seed, None, str(refused))


def _names_a_part(key: str) -> bool:
    section, _, name = key.rpartition(".")
    return name in SECTIONS[section].parts


def estimate(found: Sequence[Cell], grid: Grid, processes: int) -> str:
    """How long the grid takes, measured on a few of its cells, evenly chosen. Writes nothing."""
    from privfed.check import check
    from privfed.report import duration

    runnable = [cell for cell in found if cell.config is not None]
    step = max(len(runnable) // _MEASURED, 1)
    seconds: list[float] = []
    refused: list[str] = []
    for cell in runnable[step // 2 :: step][:_MEASURED]:
        assert cell.config is not None
        try:
            seconds.append(check(cell.config).forecast.seconds + _OVERHEAD)
        except Refused as refusal:
            refused.append(str(refusal))
    if not seconds:
        return f"{len(found)} cells; none of {len(refused)} tried would run: {refused[0]}"
    total = sum(seconds) / len(seconds) * len(runnable) / processes
    return (
        f"{len(found)} cells, {len(grid.seeds)} seeds included: about {duration(total)} on "
        f"{processes} processes (measured on {len(seconds)} of them)"
    )
