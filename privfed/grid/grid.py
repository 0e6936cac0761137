"""A grid: many runs from one file, as the product of lists, less what is excluded, times seeds.

A cell is known by its resolved configuration, never by its name: an edited base or a reordered grid
finds what was already done, and nothing else. What files hold (data, a start) is not part of it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError

from privfed.config.assembly import assembled, loss_of
from privfed.config.config import Config, Raw
from privfed.config.mistakes import mistakes
from privfed.config.overrides import assign
from privfed.config.reading import read_raw, read_toml
from privfed.config.sections import SECTIONS
from privfed.errors import Refused
from privfed.grid.default_measure import of_figure, refuse_several
from privfed.grid.figures import Figure, check_figures
from privfed.grid.results import cell_of
from privfed.parts import Part, expected

if TYPE_CHECKING:
    from privfed.models.loss import Loss

Values = Mapping[str, Any]
METHOD, AT_EDGE = "method", "at_edge"
_MEASURED = 6
_OVERHEAD = 0.5
"""Seconds a cell takes beside training: loading, calibrating, the ledger."""


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
        """Its identity: a hash of the whole configuration, or of what it was to be."""
        facts: Any = self.config.values() if self.config else [dict(self.values), self.seed]
        text = json.dumps(facts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:20]


class Method(Part):
    """A named bundle of keys to compare with others; `tune` adds to what is tuned, or replaces."""

    name: str = Field(min_length=1)
    set: dict[str, Any] = {}
    tune: dict[str, list[Any]] = {}


class Tuning(Part):
    """Keys to choose before the seeds are run: the best mean of `by` over seeds of its own.

    Without `by`, that of each cell's own loss, in its own direction.
    """

    over: dict[str, list[Any]] = {}
    seeds: list[Annotated[int, Field(ge=0, lt=2**63)]] = Field([1000], min_length=1)
    by: str = ""
    lower_is_better: bool | None = None


class Grid(Part):
    """A grid file. `base` is a run file beside it; empty: the default run."""

    base: str = ""
    method: list[Method] = []
    tune: Tuning | None = None
    seeds: list[Annotated[int, Field(ge=0, lt=2**63)]] = Field([0], min_length=1)
    grid: dict[str, list[Any]] = {}
    exclude: list[dict[str, Any]] = []
    figure: list[Figure] = []

    @property
    def axes(self) -> dict[str, list[Any]]:
        """What varies from cell to cell: the methods, where there are any, and the lists."""
        methods = {METHOD: [method.name for method in self.method]} if self.method else {}
        return {**methods, **self.grid}

    @property
    def keys(self) -> list[str]:
        return list(self.axes)

    @property
    def tuned(self) -> list[str]:
        """The keys that tuning chooses, for any method."""
        if self.tune is None:
            return []
        return list(dict.fromkeys([*self.tune.over, *(k for m in self.method for k in m.tune)]))

    @property
    def columns(self) -> list[str]:
        """The keys of the table: what varies, what was tuned, and whether at the edge."""
        return [*self.keys, *self.tuned, *([AT_EDGE] if self.tune else [])]

    def settings(self, values: Values) -> Values:
        """The keys of a run that `values` stands for."""
        chosen = next((m.set for m in self.method if m.name == values.get(METHOD)), {})
        return {**chosen, **{key: value for key, value in values.items() if key != METHOD}}

    def options(self, values: Values) -> dict[str, list[Any]]:
        """What is tried for each tuned key of the cell `values`."""
        own = next((m.tune for m in self.method if m.name == values.get(METHOD)), {})
        return {**self.tune.over, **own} if self.tune else {}


def load_grid(path: Path) -> Grid:
    """Read a grid file. Raises `Refused` with what is wrong in it."""
    document = read_toml(path, "grid")
    try:
        grid = Grid.model_validate(document)
    except ValidationError as error:
        wrong = mistakes(error, "", document, Grid)
        reasons = (f"{path}: {mistake.text}" for mistake in wrong)
        raise Refused("\n".join(reasons), key=wrong[0].key) from error
    _refuse_contradictions(path, grid)
    check_figures(grid.figure, grid.axes)
    return _measured(path, grid)


def _measured(path: Path, grid: Grid) -> Grid:
    """`grid`, whose figures know their measure and direction. Raises `Refused`."""
    if grid.base and not (path.parent / grid.base).exists():
        return grid  # figures are drawn from the table alone, whose first measure is the loss's own
    if grid.tune is not None and not grid.tune.by:
        for values in points(path, grid):
            tried = [{**values, **one} for one in _combinations(grid.options(values))]
            if losses := [loss for _, loss in _losses(path, grid, tried)]:
                refuse_several(losses)
    if all(figure.measure and not figure.worst for figure in grid.figure):
        return grid
    losses_of_cells = _losses(path, grid, points(path, grid))
    figures = [of_figure(figure, losses_of_cells) for figure in grid.figure]
    return grid.model_copy(update={"figure": figures})


def _losses(path: Path, grid: Grid, cells: Sequence[Values]) -> list[tuple[Values, Loss]]:
    """The loss of each of `cells`, but for those that are refused."""
    base = _base(path, grid)
    known = ((values, loss_of(_raw(base, grid, values))) for values in cells)
    return [
        ({key: cell_of(value) for key, value in values.items()}, loss)
        for values, loss in known
        if loss is not None
    ]


def _refuse_contradictions(path: Path, grid: Grid) -> None:
    if len(set(grid.seeds)) < len(grid.seeds):
        raise Refused(f"{path}: seeds = {grid.seeds} names one twice; name each seed once")
    _refuse_lists(path, "grid", grid.grid)
    names = [method.name for method in grid.method]
    if len(set(names)) < len(names):
        raise Refused(f"{path}: the methods {names} have one name twice; name each once")
    for method in grid.method:
        _refuse_lists(path, f"method {method.name!r} set", {k: [v] for k, v in method.set.items()})
        _refuse_lists(path, f"method {method.name!r} tune", method.tune)
        if twice := sorted(set(method.set) & {*grid.grid, *grid.options({METHOD: method.name})}):
            raise Refused(
                f"{path}: method {method.name!r} sets {twice}, which the grid varies or tunes; "
                "keep one of them"
            )
        if method.tune and grid.tune is None:
            raise Refused(f"{path}: method {method.name!r} has keys to tune, but [tune] is missing")
    if grid.tune is not None:
        _refuse_lists(path, "tune.over", grid.tune.over)
        if both := sorted(set(grid.tuned) & set(grid.grid)):
            raise Refused(f"{path}: {both} is varied by the grid and tuned; keep one of them")
        if not grid.tuned:
            raise Refused(f"{path}: [tune] names nothing to tune; set tune.over, or remove it")
        if again := sorted(set(grid.tune.seeds) & set(grid.seeds)):
            raise Refused(
                f"{path}: seeds {again} are both tuned and measured on, which flatters what is "
                "tuned most; give tune.seeds others"
            )
    for number, rule in enumerate(grid.exclude, start=1):
        unknown = [key for key in rule if key not in grid.axes]
        if unknown or not rule:
            raise Refused(
                f"{path}: exclusion {number} names {unknown or 'nothing'}, which the grid does not "
                f"vary; {expected(unknown[0] if unknown else '', grid.keys)}"
            )
        if not any(_excluded(values, rule) for values in _product(grid)):
            raise Refused(
                f"{path}: exclusion {number}, {rule}, matches no cell; correct its values"
            )


def _refuse_lists(path: Path, where: str, lists: Mapping[str, list[Any]]) -> None:
    for key, values in lists.items():
        section, dot, _ = key.rpartition(".")
        if not dot or section not in SECTIONS:
            raise Refused(
                f"{path}: {where}.{key!r} is no section.key; {expected(section, list(SECTIONS))}"
            )
        if key == "run.seed":
            raise Refused(f"{path}: {where}.'run.seed' is what seeds = [...] is for")
        if not values:
            raise Refused(
                f"{path}: {where}.{key!r} is an empty list, so there is no cell; name values"
            )
        if any(values.count(value) > 1 for value in values):
            raise Refused(f"{path}: {where}.{key!r} = {values} names a value twice; name each once")


def _product(grid: Grid) -> Iterator[dict[str, Any]]:
    yield from _combinations(grid.axes)


def _combinations(lists: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for chosen in itertools.product(*lists.values()):
        yield dict(zip(lists, chosen, strict=True))


def _excluded(values: Values, rule: Values) -> bool:
    """Whether every key of `rule` holds; a list there means any of its values."""
    return all(
        values[key] in wanted if isinstance(wanted, list) else values[key] == wanted
        for key, wanted in rule.items()
    )


def cells(path: Path, grid: Grid) -> list[Cell]:
    """All cells of the grid at `path`, seeds innermost; where it tunes, those to choose from.

    Raises `Refused` where no cell is left, or every one is refused for its configuration.
    """
    base = _base(path, grid)
    seeds = grid.tune.seeds if grid.tune else grid.seeds
    return _distinct(
        path,
        [
            _cell(base, grid, {**values, **tried}, seed)
            for values in points(path, grid)
            for tried in _combinations(grid.options(values))
            for seed in seeds
        ],
    )


def tuned_cells(path: Path, grid: Grid, choose: Callable[[Values], Values | str]) -> list[Cell]:
    """The cells of a grid that tunes, once `choose` knows the tuned keys of each, or why not."""
    base, found = _base(path, grid), []
    for values in points(path, grid):
        chosen = choose(values)
        for seed in grid.seeds:
            if isinstance(chosen, str):
                found.append(Cell(values, seed, None, chosen))
                continue
            options = grid.options(values)
            edges = [key for key in chosen if _at_edge(chosen[key], options[key])]
            cell = _cell(base, grid, {**values, **chosen}, seed)
            tuned = {**chosen, AT_EDGE: " ".join(edges)}
            found.append(replace(cell, values=values, tuned=tuned))
    return _distinct(path, found)


def to_be_measured(path: Path, grid: Grid) -> list[list[Cell]]:
    """The cells of a grid that tunes, before it has: of each, all that it may come to be."""
    if grid.tune is None:
        return []
    base = _base(path, grid)
    return [
        [_cell(base, grid, {**values, **tried}, seed) for tried in _combinations(options)]
        for values in points(path, grid)
        for options in [grid.options(values)]
        for seed in grid.seeds
    ]


def points(path: Path, grid: Grid) -> list[dict[str, Any]]:
    """Every combination of what varies, less what is excluded. Raises `Refused` for none."""
    kept = [v for v in _product(grid) if not any(_excluded(v, rule) for rule in grid.exclude)]
    if not kept:
        raise Refused(f"{path}: the exclusions leave no cell")
    return kept


def _base(path: Path, grid: Grid) -> Raw:
    return read_raw(path.parent / grid.base) if grid.base else {}


def _at_edge(value: Any, options: list[Any]) -> bool:
    """Whether a better number may lie beyond what was tried."""
    numbers = [option for option in options if isinstance(option, int | float)]
    return len(numbers) > 1 and value != 0 and value in (min(numbers), max(numbers))


def _distinct(path: Path, found: list[Cell]) -> list[Cell]:
    """`found`, where it holds something to run, and nothing twice."""
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


def _cell(base: Raw, grid: Grid, values: Values, seed: int) -> Cell:
    try:
        raw = _raw(base, grid, values)
        assign(raw, "run.seed", seed)
        for key, value in grid.settings(values).items():
            section, _, name = key.rpartition(".")
            if raw[section].get(name) != value:
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
    return name in SECTIONS[section].parts


def estimate(path: Path, found: Sequence[Cell], grid: Grid, processes: int) -> str:
    """How long the grid takes, measured on a few of its cells, evenly chosen. Writes nothing."""
    from privfed.run.check import check
    from privfed.words import duration

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
    later = len(points(path, grid)) * len(grid.seeds) if grid.tune else 0
    total = sum(seconds) / len(seconds) * (len(runnable) + later) / processes
    tuning = f"{len(found)} cells to tune on, then {later}" if grid.tune else f"{len(found)} cells"
    where = "1 process" if processes == 1 else f"{processes} processes"
    return (
        f"{tuning}, {len(grid.seeds)} seeds included: about {duration(total)} on {where} "
        f"(measured on {len(seconds)} of them)"
    )
