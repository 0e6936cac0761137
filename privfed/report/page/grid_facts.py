"""What a page about a grid is written from: its file and its tables, and no run directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privfed.errors import Refused
from privfed.grid.cells import grid_points, losses_of
from privfed.grid.default_measure import figure_with_measure
from privfed.grid.grid import Grid
from privfed.grid.load import load_grid
from privfed.grid.pictures.figures import PROGRESS, ROUND, Figure
from privfed.grid.results import DONE, Files, Row, cell_of, measures_of
from privfed.grid.summary import summary
from privfed.grid.tables import read_table

ATTACK = "attack.name"


@dataclass(frozen=True)
class GridFacts:
    """A grid and its rows: of cells and seeds, of cells over their seeds, and of rounds."""

    files: Files
    grid: Grid
    rows: Sequence[Row]
    cells: Sequence[Row]
    rounds: Sequence[Row]

    @property
    def ends(self) -> Mapping[str, int]:
        """How many rows ended how."""
        return Counter(str(row["status"]) for row in self.rows)

    @property
    def measures(self) -> list[str]:
        """The measures that any row has, the first the one to look at."""
        names = measures_of(self.grid.columns, self.rows)
        return [name for name in names if any(_is_there(row.get(name)) for row in self.rows)]

    @property
    def figures(self) -> list[Figure]:
        """The figures that anybody may see."""
        return [figure for figure in self.grid.figure if not simulated(figure)]

    def rows_of(self, figure: Figure) -> Sequence[Row]:
        """The rows that a figure is drawn from."""
        return self.rounds if figure.x in PROGRESS else self.rows

    def worst_first(self) -> Figure | None:
        """The grid's measure and its direction, where attacks vary; None where neither is known."""
        if ATTACK not in self.grid.axes:
            return None
        try:
            losses = losses_of(self.files.grid, self.grid, grid_points(self.files.grid, self.grid))
            return figure_with_measure(Figure(name="worst", x=ROUND, worst=ATTACK), losses)
        except Refused:
            return None


def simulated(figure: Figure) -> bool:
    """Whether a figure is over what is measured in simulations only."""
    return figure.x in PROGRESS and figure.x != ROUND


def grid_facts(files: Files) -> GridFacts:
    """Read the grid and its tables. Raises `Refused` where it has none yet."""
    grid = load_grid(files.grid)
    words = [key for key, options in grid.axes.items() if _any_text(options)]
    rows = read_table(files.table, words)
    if missing := [key for key in (*grid.columns, "status") if rows and key not in rows[0]]:
        raise Refused(
            f"{files.table} is the table of another grid: it has no {missing[0]!r}; run the "
            "experiment again"
        )
    rounds = read_table(files.rounds, words) if files.rounds.is_file() else []
    return GridFacts(files, grid, rows, summary(grid.columns, rows), rounds)


def files_of(grid: Path) -> Files:
    """The tables beside a grid file."""
    return Files(grid, grid.parent)


def _any_text(options: Sequence[Any]) -> bool:
    return any(isinstance(cell_of(option), str) for option in options)


def _is_there(value: Any) -> bool:
    return value is not None and value != ""


def counted_ends(facts: GridFacts) -> str:
    """How the runs of the grid ended, in words."""
    ends = ", ".join(f"{count} {end}" for end, count in facts.ends.items())
    return f"{len(facts.cells)} cells over {len(facts.grid.seeds)} seeds: {ends or DONE}"
