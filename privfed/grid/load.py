"""Grid files are read and checked here, and their figures told what they show by default."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from privfed.config.mistakes import listed_mistakes, mistakes
from privfed.config.reading import read_toml
from privfed.errors import Refused
from privfed.grid.cells import grid_points, losses_of
from privfed.grid.contradictions import refuse_contradictory_grid
from privfed.grid.default_measure import figure_with_measure, refuse_several_measures
from privfed.grid.grid import Grid, key_combinations
from privfed.grid.pictures.figures import check_figures


def load_grid(path: Path) -> Grid:
    """Read a grid file. Raises `Refused` with what is wrong in it."""
    document = read_toml(path, "grid")
    try:
        grid = Grid.model_validate(document)
    except ValidationError as error:
        wrong = mistakes(error, "", document, Grid)
        raise Refused(listed_mistakes(wrong, f"{path}: "), key=wrong[0].key) from error
    refuse_contradictory_grid(path, grid)
    check_figures(grid.figure, grid.axes)
    return _with_measures(path, grid)


def _with_measures(path: Path, grid: Grid) -> Grid:
    """`grid`, whose figures know their measure and direction. Raises `Refused`."""
    if grid.base and not _is_there(path.parent / grid.base):
        return grid  # figures are drawn from the table alone, whose first measure is the loss's own
    if grid.tune is not None and not grid.tune.by:
        for values in grid_points(path, grid):
            tried = [{**values, **options} for options in key_combinations(grid.options(values))]
            if losses := [loss for _, loss in losses_of(path, grid, tried)]:
                refuse_several_measures(losses)
    if all(figure.measure and not figure.worst for figure in grid.figure):
        return grid
    losses_of_cells = losses_of(path, grid, grid_points(path, grid))
    figures = [figure_with_measure(figure, losses_of_cells) for figure in grid.figure]
    return grid.model_copy(update={"figure": figures})


def _is_there(path: Path) -> bool:
    """Whether there is a file at `path`; a name that no file can have is at no file's."""
    try:
        return path.exists()
    except OSError:
        return False
