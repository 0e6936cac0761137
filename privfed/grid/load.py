"""Reads and checks grid files, and fills in the metrics that their figures leave out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from privfed.config.mistakes import listed_mistakes, mistakes
from privfed.config.overrides import is_key
from privfed.config.reading import read_toml
from privfed.config.sections import SECTIONS
from privfed.core.errors import Refused
from privfed.core.parts import expected
from privfed.grid.cells import grid_points, losses_of
from privfed.grid.grid import METHOD, Grid, Method, Tuning, Values, key_combinations, matches
from privfed.grid.pictures.figures import check_figures
from privfed.grid.tables import figure_with_measure, refuse_several_measures


def refuse_contradictory_grid(path: Path, grid: Grid) -> None:
    """Raises `Refused` if keys of `grid`, read from `path`, contradict each other."""
    if len(set(grid.seeds)) < len(grid.seeds):
        raise Refused(f"{path}: seeds is {grid.seeds}, but names a seed twice; name each seed once")
    _refuse_lists(path, "grid", grid.grid)
    names = [method.name for method in grid.method]
    if len(set(names)) < len(names):
        raise Refused(
            f"{path}: the methods are {names}, but two have the same name; give each its own name"
        )
    for method in grid.method:
        _refuse_method(path, grid, method)
    if grid.tune is not None:
        _refuse_tuning(path, grid, grid.tune)
    for number, exclusion in enumerate(grid.exclude, start=1):
        _refuse_exclusion(path, grid, number, exclusion)


def _refuse_method(path: Path, grid: Grid, method: Method) -> None:
    _refuse_lists(path, f"method {method.name!r} set", {k: [v] for k, v in method.set.items()})
    _refuse_lists(path, f"method {method.name!r} tune", method.tune)
    if twice := sorted(set(method.set) & {*grid.grid, *grid.options({METHOD: method.name})}):
        raise Refused(
            f"{path}: method {method.name!r} sets {twice}, but the grid varies or tunes the same "
            "key; set the key in one place"
        )
    if method.tune and grid.tune is None:
        raise Refused(
            f"{path}: method {method.name!r} has keys to tune, but [tune] is missing; add [tune]"
        )


def _refuse_tuning(path: Path, grid: Grid, tuning: Tuning) -> None:
    _refuse_lists(path, "tune.over", tuning.over)
    if both := sorted(set(grid.tuned_keys) & set(grid.grid)):
        raise Refused(
            f"{path}: {both} is both varied by the grid and tuned; list each key in one place"
        )
    if not grid.tuned_keys:
        raise Refused(f"{path}: [tune] names no key to tune; set tune.over, or remove [tune]")
    if tuning.private:
        _refuse_private_tuning(path, grid, tuning)
        return
    if only := sorted({"candidates", "shape"} & tuning.model_fields_set):
        raise Refused(
            f"{path}: tune.{only[0]} is set, but has an effect only with tune.private = true; set "
            "tune.private = true, or remove the key"
        )
    if again := sorted(set(tuning.seeds) & set(grid.seeds)):
        raise Refused(
            f"{path}: tune.seeds has {again}, which are also seeds of the grid, but this favours "
            "methods with more tuned keys; use other seeds in tune.seeds"
        )


def _refuse_private_tuning(path: Path, grid: Grid, tuning: Tuning) -> None:
    """Raises `Refused` if a grid with private tuning would release more than one run, or has
    another number of seeds than one.
    """
    other_keys = {
        "[grid]": grid.grid, "[[method]]": grid.method, "[[exclude]]": grid.exclude,
        "[[figure]]": grid.figure,
    }  # fmt: skip
    if others := [name for name, keys in other_keys.items() if keys]:
        raise Refused(
            f"{path}: tune.private is true, which releases only the best run, but "
            f"{', '.join(others)} needs several runs; list the keys to choose in tune.over, and "
            f"remove {', '.join(others)}"
        )
    if len(grid.seeds) != 1 or "seeds" in tuning.model_fields_set:
        raise Refused(
            f"{path}: tune.private is true, but the choice is made over the population of one "
            "seed; name one seed in seeds = [...], and leave tune.seeds out"
        )
    if 0.0 < tuning.candidates < 1.0:
        raise Refused(f"{path}: tune.candidates is {tuning.candidates:g}; expected 1 or more")


def _refuse_exclusion(path: Path, grid: Grid, number: int, exclusion: Values) -> None:
    unknown = [key for key in exclusion if key not in grid.axes]
    if unknown or not exclusion:
        raise Refused(
            f"{path}: exclusion {number} names {unknown or 'no key'}; expected keys that the grid "
            f"varies; {expected(unknown[0] if unknown else '', grid.keys)}"
        )
    if not any(matches(values, exclusion) for values in grid.product()):
        raise Refused(
            f"{path}: exclusion {number}, {exclusion}, matches no cell; correct the exclusion's "
            "values"
        )


def _refuse_lists(path: Path, where: str, lists: Mapping[str, list[Any]]) -> None:
    for key, values in lists.items():
        if not is_key(key):
            section = key.rpartition(".")[0]
            raise Refused(
                f"{path}: {where}.{key!r} is not a key of the form section.key; "
                f"{expected(section, list(SECTIONS))}"
            )
        if key == "run.seed":
            raise Refused(
                f"{path}: {where} varies 'run.seed', but seeds have a separate key; use seeds "
                "= [...] instead"
            )
        if not values:
            raise Refused(
                f"{path}: {where}.{key!r} is an empty list, so there would be no cell; list one or "
                "more values"
            )
        if any(values.count(value) > 1 for value in values):
            raise Refused(
                f"{path}: {where}.{key!r} is {values}, but lists a value twice; list each value "
                "once"
            )


def load_grid(path: Path) -> Grid:
    """Reads a grid file.

    Args:
      path: the grid file.

    Returns:
      The grid. In its figures, a missing metric, and whether lower values are better, are set.

    Raises:
      Refused: with every unknown or malformed key, or with the first contradiction between keys.
    """
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
    """Returns `grid` with the metric of each figure, and whether lower values are better.

    Raises `Refused` if the cells' losses differ in their first metric and the grid names none.
    """
    if grid.base and not _is_there(path.parent / grid.base):
        return grid  # figures then show the table's first metric, that of the loss
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
    """Whether a file or folder exists at `path`; False if the operating system rejects the path."""
    try:
        return path.exists()
    except OSError:
        return False
