"""The tables of a grid's page: cells, worst attacks, unfinished runs, and joint guarantees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accounting.statement import NOMINAL
from privfed.core.errors import Broken, Refused
from privfed.core.text import ceiling, number
from privfed.grid.cells import grid_points, losses_of
from privfed.grid.grid import Grid
from privfed.grid.load import load_grid
from privfed.grid.pictures.figures import PROGRESS, ROUND, Figure
from privfed.grid.results import DONE, Files, Row, cell_of, measures_of
from privfed.grid.tables import figure_with_measure, read_table, summary
from privfed.report.page.blocks import Figures
from privfed.report.page.drawing import rounded

ATTACK = "attack.name"


@dataclass(frozen=True)
class GridFacts:
    """A grid of runs, with the tables of their results.

    Here a cell is one combination of the grid's values, and has one run for each seed.

    Attributes:
      files: the paths of the tables.
      grid: the content of the grid file.
      rows: table with a row for each cell and seed, which is one run.
      cells: table with a row for each cell, which summarises the cell's seeds.
      rounds: table with a row for each cell, seed and evaluated round.
    """

    files: Files
    grid: Grid
    rows: Sequence[Row]
    cells: Sequence[Row]
    rounds: Sequence[Row]

    @property
    def ends(self) -> Mapping[str, int]:
        """The number of runs by status, such as "done"."""
        return Counter(str(row["status"]) for row in self.rows)

    @property
    def measures(self) -> list[str]:
        """The names of all metrics of which the table `rows` has a value, in the table's order."""
        names = measures_of(self.grid.columns, self.rows)
        return [name for name in names if any(_is_there(row.get(name)) for row in self.rows)]

    @property
    def figures(self) -> list[Figure]:
        """The grid file's figures, except those of values that only simulations measure."""
        return [figure for figure in self.grid.figure if not simulated(figure)]

    def rows_of(self, figure: Figure) -> Sequence[Row]:
        """Returns the table that a figure is drawn from: `rounds` or `rows`."""
        return self.rounds if figure.x in PROGRESS else self.rows

    def worst_first(self) -> Figure | None:
        """Returns a figure that names the metric, and its better direction, to compare attacks by.

        None if the grid does not vary the attack, or if its cells have losses with different first
        metrics.
        """
        if ATTACK not in self.grid.axes:
            return None
        try:
            losses = losses_of(self.files.grid, self.grid, grid_points(self.files.grid, self.grid))
            return figure_with_measure(Figure(name="worst", x=ROUND, worst=ATTACK), losses)
        except Refused:
            return None


def simulated(figure: Figure) -> bool:
    """Whether a figure's x is one of `PROGRESS` that only simulations measure: not `ROUND`."""
    return figure.x in PROGRESS and figure.x != ROUND


def grid_facts(files: Files) -> GridFacts:
    """Reads a grid and its tables, and returns both.

    Args:
      files: the files of the tables; that of evaluated rounds may be missing.

    Raises:
      Refused: if the grid file is invalid, there is no table of runs, or a column for a key of the
        grid is missing, so that the table is another grid's.
    """
    grid = load_grid(files.grid)
    words = [key for key, options in grid.axes.items() if _any_text(options)]
    rows = read_table(files.table, words)
    if missing := [key for key in (*grid.columns, "status") if rows and key not in rows[0]]:
        raise Refused(
            f"{files.table} has no column {missing[0]!r}, so it is the table of another grid; run "
            "the experiment again"
        )
    rounds = read_table(files.rounds, words) if files.rounds.is_file() else []
    return GridFacts(files, grid, rows, summary(grid.columns, rows), rounds)


def files_of(grid: Path) -> Files:
    """Returns the paths of a grid's tables, in the folder of the grid file."""
    return Files(grid, grid.parent)


def _any_text(options: Sequence[Any]) -> bool:
    return any(isinstance(cell_of(option), str) for option in options)


def _is_there(value: Any) -> bool:
    return value is not None and value != ""


def counted_ends(facts: GridFacts) -> str:
    """Describes the numbers of cells and seeds, and the number of runs of each status."""
    ends = ", ".join(f"{count} {end}" for end, count in facts.ends.items())
    return f"{len(facts.cells)} cells over {len(facts.grid.seeds)} seeds: {ends or DONE}"


_MEANING = ("δ", "unit", "relation", "sampler", "accountant", "guarantee", "against", "not covered")


def cell_figures(facts: GridFacts) -> Figures:
    """Returns a table of the cells: metrics and the largest ε over seeds, with the terms of ε.

    Terms that all cells have in common are only in the caption.
    """
    keys, measures = facts.grid.columns, facts.measures
    meanings = [_meaning(cell) for cell in facts.cells]
    alike = {name: values for name in _MEANING if len(values := {m[name] for m in meanings}) == 1}
    apart = [name for name in _MEANING if name not in alike]
    alike = {name: values for name, values in alike.items() if values != {"—"}}
    lines = [
        [
            *(_value(cell.get(key)) for key in keys),
            str(cell["seeds"]),
            *(_spread(cell, name) for name in measures),
            _epsilon(cell),
            *(meaning[name] for name in apart),
        ]
        for cell, meaning in zip(facts.cells, meanings, strict=True)
    ]
    everywhere = "; ".join(f"{name} {next(iter(values))}" for name, values in alike.items())
    caption = "Mean, standard deviation and range over seeds; ε of a run alone, the largest one"
    numeric = frozenset(range(len(keys), len(keys) + len(measures) + 2))
    return Figures(
        f"{caption} ({everywhere}). Sort by any heading." if everywhere else f"{caption}.",
        [*keys, "seeds", *measures, "ε", *apart],
        lines,
        numeric,
        sortable=True,
    )


def worst_table(facts: GridFacts, direction: Figure) -> Figures:
    """Returns a table of the worst attack for each combination of the grid's other keys.

    Attacks are compared by the mean over seeds of the metric that `direction` names.
    """
    others = [key for key in facts.grid.columns if key != ATTACK]
    name, groups = direction.measure, _grouped(facts.cells, others)
    worst = max if direction.lower_is_better else min
    lines = []
    for values, cells in groups:
        missing = [cell for cell in cells if cell.get(f"{name}_mean") is None]
        if missing:
            names = ", ".join(_value(cell[ATTACK]) for cell in missing)
            lines.append([*values, f"not known without {names}", "—"])
            continue
        cell = worst(cells, key=lambda cell: float(cell[f"{name}_mean"]))
        lines.append([*values, _value(cell[ATTACK]), _spread(cell, name)])
    columns = [*others, "worst attack", name]
    numeric = frozenset({len(columns) - 1})
    return Figures(f"The worst {name} over attacks", columns, lines, numeric, sortable=True)


def failures_table(facts: GridFacts) -> Figures | None:
    """Returns a table of runs that are not "done", by status and reason; None if there are none."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in facts.rows:
        if row["status"] != DONE:
            values = [f"{key} {_value(row.get(key))}" for key in facts.grid.columns]
            cell = ", ".join([*values, f"seed {row['seed']}"])
            reasons.setdefault((str(row["status"]), str(row["reason"])), []).append(cell)
    lines = [
        [end, reason, str(len(cells)), "; ".join(cells)] for (end, reason), cells in reasons.items()
    ]
    columns = ["ended", "reason", "runs", "which"]
    return Figures("Runs that are not done", columns, lines, frozenset({2})) if lines else None


def joint_table(facts: GridFacts) -> Figures | None:
    """Returns the table of joint guarantees; None if no row of the table `rows` states one."""
    names = ("joint_epsilon", "joint_cells", *_TERMS, "joint_note")
    stated = [row for row in facts.rows if row.get("joint_epsilon") is not None]
    distinct = dict.fromkeys(tuple(row.get(name) for name in names) for row in stated)
    if not distinct:
        return None
    lines = [
        [ceiling(_number(epsilon)), str(cells), *map(_value, rest)]
        for epsilon, cells, *rest in distinct
    ]
    columns = ["joint ε", "runs", "δ", "unit", "adjacency", "notes"]
    caption = "Joint guarantee of all runs over the same population"
    return Figures(caption, columns, lines, frozenset({0, 1, 2}))


_TERMS = ("delta", "unit", "relation")


def _grouped(cells: Sequence[Row], keys: Sequence[str]) -> list[tuple[list[str], list[Row]]]:
    """Groups the cells by their values of `keys`; returns these values and the cells, per group."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell.get(key) for key in keys), []).append(cell)
    return [([_value(value) for value in values], group) for values, group in groups.items()]


def _spread(cell: Row, name: str) -> str:
    """Formats a metric over the seeds of a cell: mean ± standard deviation (minimum to maximum).

    For one seed it is the value alone; a dash if it is unknown.
    """
    parts = ("mean", "sd", "min", "max")
    mean, std, low, high = (cell.get(f"{name}_{part}") for part in parts)
    if mean is None or std is None:
        return "—"
    if cell["seeds"] == 1:
        return _brief(mean)
    return f"{_brief(mean)} ± {_brief(std)} ({_brief(low)} to {_brief(high)})"


def _brief(value: Any) -> str:
    return rounded(float(f"{value:.4g}"))


def _epsilon(cell: Row) -> str:
    """Formats the largest ε over the seeds of a cell; a dash if unknown.

    It is marked as nominal for a simulation, or if the guarantee is void.
    """
    largest = cell.get("epsilon_max")
    if largest is None:
        return "—"
    nominal = cell.get("simulation") or cell.get("guarantee")
    return ceiling(_number(largest)) + NOMINAL * bool(nominal)


def _number(value: Any) -> float | None:
    """Converts a table's field to a number; None if empty. Raises `Broken` if it is no number."""
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        raise Broken(
            "a table of this grid has an ε that is not a number; run the experiment again"
        ) from None


def _meaning(cell: Row) -> dict[str, str]:
    """Returns the terms of a cell's ε, by the labels `_MEANING`; a dash for an unknown one."""
    names = (*_TERMS, "sampler", "accountant")
    stated = {"guarantee": str(cell.get("guarantee") or "as stated")}
    start = f"the initial model, {cell['uncovered']}" if cell.get("uncovered") else "—"
    stated |= {"against": str(cell.get("against") or "—"), "not covered": start}
    return {
        label: _value(cell.get(name)) for label, name in zip(_MEANING, names, strict=False)
    } | stated


def _value(value: Any) -> str:
    """Formats the value in a field of a table."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return number(value)
    return str(value or "—")
