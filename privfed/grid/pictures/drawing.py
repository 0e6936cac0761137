"""Draws figures from a grid's tables alone: curves with bands, heat maps, bars."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accounting.durable import write_atomically
from privfed.core.errors import Refused
from privfed.core.parts import expected
from privfed.grid.pictures.figures import (
    PROGRESS,
    ROUND,
    STYLE,
    Figure,
    holds,
    refuse_averaging,
    refuse_unknown,
    text,
    values,
)
from privfed.grid.pictures.panels import (
    ATTACK_SUCCESS,
    draw_bars_panel,
    draw_curves_panel,
    draw_heat_panel,
    shows_success,
)
from privfed.grid.results import DONE, Files, Row, cell_of, measures_of
from privfed.grid.tables import read_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_FACTS = ("epsilon", "noise_multiplier", "seconds", "charges", "rounds", "aborted")
"""Table columns that a figure can show although they are not metrics."""
_ACROSS = 3
"""Largest number of panels side by side."""
_KINDS = {"curves": draw_curves_panel, "bars": draw_bars_panel, "heat": draw_heat_panel}


def draw_all(
    files: Files,
    figures: Sequence[Figure],
    varied: Mapping[str, Sequence[Any]],
    columns: Sequence[str],
) -> list[Path]:
    """Draws every figure of a grid from its tables.

    Args:
      files: the paths of the grid's tables.
      figures: the figures.
      varied: the values of each key that the grid varies.
      columns: the key columns of the tables: varied and tuned keys.

    Returns:
      The paths of the written files.

    Raises:
      Refused: if a table is missing or is that of another grid, or a figure cannot be drawn.
    """
    written = []
    words = [
        key
        for key, options in varied.items()
        if any(isinstance(cell_of(option), str) for option in options)
    ]
    for figure in figures:
        cells = read_table(files.table, words)
        _refuse_other_grid(files.table, cells, columns)
        rows = read_table(files.rounds, words) if figure.x in PROGRESS else cells
        for path, content in draw(figure, rows, [*varied]).items():
            write_atomically(files.folder / path, content)
            written.append(files.folder / path)
    return written


def draw(figure: Figure, rows: Sequence[Row], keys: Sequence[str]) -> dict[str, bytes]:
    """Draws a figure from the rows of a table.

    Args:
      figure: the figure.
      rows: the rows of the table of runs, or of evaluated rounds if `figure.x` is a run's progress.
      keys: the keys that the grid varies.

    Returns:
      The contents of the .svg and the .png file, by file name.

    Raises:
      Refused: if the figure names an unknown key or metric, averages over a key, or has nothing to
        show.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    refuse_unknown(figure, keys)
    if figure.x in PROGRESS:
        rows = _aligned(rows, keys, figure.x)
    rows_held = [row for row in rows if holds(row, figure.where)]
    refuse_averaging(figure, {key: values(rows_held, key) for key in keys})
    figure = _with_known_measure(figure, rows, keys)
    shown = [row for row in rows_held if row.get("status", DONE) == DONE]
    if not any(row.get(figure.measure) is not None for row in shown):
        raise Refused(
            f"figure {figure.name!r} has nothing to show, since no cell matches the figure's "
            "keys; correct these keys"
        )
    panels = values(shown, figure.panels) if figure.panels else [None]
    with matplotlib.rc_context({**STYLE, "text.parse_math": False}):  # names may hold any letter
        across = min(len(panels), _ACROSS)
        down = -(-len(panels) // across)
        size = (1.2 + _panel_width(figure, shown) * across, 0.3 + 2.8 * down)
        canvas, grid = pyplot.subplots(down, across, figsize=size, sharey=True, squeeze=False)
        try:
            _draw_panels(figure, shown, panels, [axes for line in grid for axes in line], canvas)
            return {f"{figure.name}.{kind}": _bytes(canvas, kind) for kind in ("svg", "png")}
        finally:
            pyplot.close(canvas)


def _panel_width(figure: Figure, rows: Sequence[Row]) -> float:
    """Returns the width of a panel in inches: a heat map's columns are wide enough for a number."""
    columns = len(values(rows, figure.x)) if figure.kind == "heat" else 0
    return max(3.4, 0.45 * columns + 1.0)


def _with_known_measure(figure: Figure, rows: Sequence[Row], keys: Sequence[str]) -> Figure:
    """Returns `figure` with its metric, by default the first metric of the table.

    Raises `Refused` for an unknown metric.
    """
    measured = [name for name in measures_of(keys, rows) if name not in PROGRESS]
    measure = figure.measure or next(iter(measured), "")
    measures = {*measured, *_FACTS}
    if measure not in measures:
        raise Refused(f"figure {figure.name!r} shows {measure!r}; {expected(measure, [*measures])}")
    return figure.model_copy(update={"measure": measure})


def _draw_panels(
    figure: Figure,
    rows: Sequence[Row],
    panels: Sequence[Any],
    places: Sequence[Axes],
    canvas: Canvas,
) -> None:
    """Draws each value of `panels` on axes of its own, removes unused axes, and adds labels and a
    legend.
    """
    for axes in places[len(panels) :]:
        axes.remove()
    for axes, panel in zip(places, panels, strict=False):
        in_panel = [row for row in rows if panel is None or row[figure.panels] == panel]
        _KINDS[figure.kind](figure, in_panel, rows, axes)
        if panel is not None:
            axes.set_title(f"{figure.label(figure.panels)} {text(panel)}", fontsize=9)
    if figure.kind != "heat":
        places[0].set_ylabel(figure.label(figure.measure))
        if figure.by:
            _add_legend(figure, rows, canvas, places[: len(panels)])
    _add_title(figure, canvas, rows)


def _add_legend(
    figure: Figure, rows: Sequence[Row], canvas: Canvas, panels: Sequence[Axes]
) -> None:
    """Adds one legend for all panels, with the values of the figure's key `by` that are drawn."""
    legends = [axes.get_legend_handles_labels() for axes in panels]
    handle_of = {n: h for handles, names in legends for h, n in zip(handles, names, strict=True)}
    names = [name for value in values(rows, figure.by) if (name := text(value)) in handle_of]
    handles = [handle_of[name] for name in names]
    canvas.legend(handles, names, title=figure.label(figure.by), loc="outside right center")


def _add_title(figure: Figure, canvas: Canvas, rows: Sequence[Row]) -> None:
    title = figure.title
    if figure.kind == "heat" and not title:
        worst = f", worst over {figure.label(figure.worst)}" if figure.worst else ""
        title = f"{figure.label(figure.measure)}{worst}"
    if shows_success(figure, rows):
        title += f" (in brackets: {figure.label(ATTACK_SUCCESS)})"
    lines = [textwrap.fill(title, 70), _runs_behind(figure, rows)]
    if any(lines):
        canvas.suptitle("\n".join(filter(None, lines)), fontsize=10)


def _runs_behind(figure: Figure, rows: Sequence[Row]) -> str:
    """Returns a text on a heat map's numbers of seeds and rounds; "" for other figures."""
    if figure.kind != "heat":
        return ""
    keys = [key for key in (figure.x, figure.by, figure.panels, figure.worst) if key]
    fields: dict[tuple[Any, ...], set[Any]] = {}
    for row in rows:
        if row.get(figure.measure) is not None:
            fields.setdefault(tuple(row[key] for key in keys), set()).add(row.get("seed"))
    rounds = [row["rounds"] for row in rows if row.get("rounds") is not None]
    after = f" after {_range(rounds, 'round')}" if rounds and figure.x not in PROGRESS else ""
    return f"means over {_range([*map(len, fields.values())], 'seed')}{after}" if fields else ""


def _range(counts: Sequence[int], noun: str) -> str:
    """Formats counts as "3 seeds" or "2 to 3 seeds"."""
    low, high = int(min(counts)), int(max(counts))
    plural = noun if high == 1 else f"{noun}s"
    return f"{high:,} {plural}" if low == high else f"{low:,} to {high:,} {plural}"


def _bytes(canvas: Canvas, kind: str) -> bytes:
    """Returns the figure as a file of the `kind` "svg" or "png", with reproducible bytes."""
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    canvas.savefig(buffer, format=kind, dpi=160, metadata=metadata)
    return buffer.getvalue()


def _aligned(rows: Sequence[Row], keys: Sequence[str], x: str) -> list[Row]:
    """Returns `rows` with each `x` replaced by its mean over seeds, for equal values of `keys` and
    round.

    Runs with different seeds process different numbers of examples. Raises `Refused` if a row has
    no `x`.
    """
    if any(row.get(x) is None for row in rows):
        raise Refused(
            f"a figure has x = {x!r}, but some runs have not measured that; set "
            f"run.simulation_metrics = true in all runs, or use x = {ROUND!r}"
        )
    places: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        places.setdefault(tuple(row[key] for key in (*keys, ROUND)), []).append(float(row[x]))
    means = {place: sum(seeds) / len(seeds) for place, seeds in places.items()}
    return [{**row, x: means[tuple(row[key] for key in (*keys, ROUND))]} for row in rows]


def _refuse_other_grid(path: Path, rows: Sequence[Row], keys: Sequence[str]) -> None:
    names = [*rows[0]] if rows else []
    varied = names[: names.index("seed")] if "seed" in names else names
    if set(varied) != set(keys) or "status" not in names:
        raise Refused(
            f"{path} is the table of another grid, which varies {varied}, but the grid file varies "
            f"{[*keys]}; run the experiment again"
        )
