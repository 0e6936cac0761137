"""Figures from a grid's tables: curves with bands, heat maps, bars. Nothing else is read.

Readable in print and for the colour-blind: the Okabe-Ito palette with a marker and a dash each
(Okabe & Ito 2008), cividis for maps (Nunez, Anderton & Renslow 2018), numbers in every field.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from accounting.durable import write_atomically
from privfed.errors import Refused
from privfed.parts import Part, expected
from privfed.results import DONE, Files, Row, Spread, read_table, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

ROUND = "round"
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":")
_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "privfed",
    "figure.constrained_layout.use": True,
}


class Figure(Part):
    """One picture, `name`.svg and .png.

    `measure` over the values of `x` (or over "round"), one line, group of bars or row of the map
    per value of `by`, one panel per value of `panels`. `where` fixes keys. A key that varies has to
    appear in one of these, or in `worst`: of its values the worst mean over seeds is shown. Nothing
    is averaged but seeds.
    """

    name: str = Field(pattern=r"^[\w. -]+$")
    kind: Literal["curves", "heat", "bars"] = "curves"
    measure: str = "accuracy"
    x: str
    by: str = ""
    panels: str = ""
    worst: str = ""
    where: dict[str, Any] = {}
    lower_is_better: bool = False
    title: str = ""
    labels: dict[str, str] = {}

    def label(self, key: str) -> str:
        return self.labels.get(key, key.rpartition(".")[2].replace("_", " "))


def draw_all(files: Files, figures: Sequence[Figure], keys: Sequence[str]) -> list[Path]:
    """Draw every figure of a grid from its tables; the files written. Raises `Refused`."""
    written = []
    for figure in figures:
        rows = read_table(files.rounds if figure.x == ROUND else files.table)
        for path, content in draw(figure, rows, keys).items():
            write_atomically(files.folder / path, content)
            written.append(files.folder / path)
    return written


def draw(figure: Figure, rows: Sequence[Row], keys: Sequence[str]) -> dict[str, bytes]:
    """The picture of `rows` as files by name. Raises `Refused` for keys that do not fit."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    _refuse_hidden(figure, rows, keys)
    shown = [row for row in rows if _holds(row, figure.where) and row.get("status", DONE) == DONE]
    if not shown:
        raise Refused(f"figure {figure.name!r} has no row to show: {figure.where} holds in none")
    panels = values(shown, figure.panels) if figure.panels else [None]
    with matplotlib.rc_context(_STYLE):
        canvas, grid = pyplot.subplots(
            1, len(panels), figsize=(1.2 + 3.4 * len(panels), 3.1), sharey=True, squeeze=False
        )
        try:
            for axes, panel in zip(grid[0], panels, strict=True):
                some = [row for row in shown if panel is None or row[figure.panels] == panel]
                _KINDS[figure.kind](figure, some, shown, axes)
                if panel is not None:
                    axes.set_title(f"{figure.label(figure.panels)} {text(panel)}", fontsize=9)
            _finish(figure, shown, canvas, grid[0])
            return {f"{figure.name}.{kind}": _bytes(canvas, kind) for kind in ("svg", "png")}
        finally:
            pyplot.close(canvas)


def _finish(figure: Figure, rows: Sequence[Row], canvas: Canvas, axes: Sequence[Axes]) -> None:
    if figure.kind != "heat":
        axes[0].set_ylabel(figure.label(figure.measure))
        if figure.by:
            drawn = [one.get_legend_handles_labels() for one in axes]
            named = {n: h for handles, names in drawn for h, n in zip(handles, names, strict=True)}
            names = [name for value in values(rows, figure.by) if (name := text(value)) in named]
            handles = [named[name] for name in names]
            title = figure.label(figure.by)
            canvas.legend(handles, names, title=title, loc="outside right center")
    if figure.title:
        canvas.suptitle(figure.title, fontsize=10)


def _bytes(canvas: Canvas, kind: str) -> bytes:
    out = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    canvas.savefig(out, format=kind, dpi=160, metadata=metadata)
    return out.getvalue()


def _curves(figure: Figure, rows: Sequence[Row], everything: Sequence[Row], axes: Axes) -> None:
    """Means over seeds, with the band from the least seed to the greatest."""
    positions, names = _places(figure, everything)
    for number, (value, some) in enumerate(_groups(figure, rows, everything)):
        points = [(positions[x], found) for x, found in _over_x(figure, some) if found.count]
        if not points:
            continue
        xs = [x for x, _ in points]
        colour = _COLOURS[number % len(_COLOURS)]
        axes.plot(
            xs,
            [found.mean for _, found in points],
            color=colour,
            linestyle=_DASHES[number % len(_DASHES)],
            marker=None if figure.x == ROUND else _MARKERS[number % len(_MARKERS)],
            markersize=4,
            linewidth=1.4,
            label=text(value),
        )
        low, high = ([getattr(found, end) for _, found in points] for end in ("low", "high"))
        axes.fill_between(xs, low, high, color=colour, alpha=0.18, linewidth=0)
    _x_axis(figure, names, axes)


def _bars(figure: Figure, rows: Sequence[Row], everything: Sequence[Row], axes: Axes) -> None:
    """Means over seeds, with a whisker from the least seed to the greatest."""
    positions, names = _places(figure, everything)
    groups = list(_groups(figure, rows, everything))
    width = 0.8 / len(groups)
    for number, (value, some) in enumerate(groups):
        points = [(positions[x], found) for x, found in _over_x(figure, some) if found.count]
        shift = (number - (len(groups) - 1) / 2) * width
        means = [found.mean for _, found in points]
        axes.bar(
            [x + shift for x, _ in points],
            means,
            width * 0.92,
            color=_COLOURS[number % len(_COLOURS)],
            edgecolor="black",
            linewidth=0.4,
            hatch=("", "///", "...", "xxx")[number % 4],
            label=text(value),
            yerr=[
                [found.mean - found.low for _, found in points],
                [found.high - found.mean for _, found in points],
            ],
            error_kw={"elinewidth": 1, "capsize": 2},
        )
    axes.grid(axis="x", visible=False)
    _x_axis(figure, names, axes)


def _heat(figure: Figure, rows: Sequence[Row], everything: Sequence[Row], axes: Axes) -> None:
    """One field per pair of values, with its number; hatched where there is none."""
    import numpy as np

    columns = values(everything, figure.x)
    lines = values(everything, figure.by) if figure.by else [None]
    field = np.full((len(lines), len(columns)), np.nan)
    for number, (_, some) in enumerate(_groups(figure, rows, everything)):
        for x, found in _over_x(figure, some):
            if found.count:
                field[number, columns.index(x)] = found.mean
    finite = [found.mean for found in _all_spreads(figure, everything) if found.count]
    low, high = min(finite), max(finite)
    axes.set_facecolor("#eeeeee")
    axes.imshow(
        field, cmap="cividis", vmin=low, vmax=high if high > low else low + 1, aspect="auto"
    )
    for line in range(len(lines)):
        for column in range(len(columns)):
            value = field[line, column]
            bright = not math.isnan(value) and value > (low + high) / 2
            shown = "—" if math.isnan(value) else f"{value:.3g}"
            colour = "black" if bright or math.isnan(value) else "white"
            axes.text(column, line, shown, ha="center", va="center", color=colour, fontsize=8)
    axes.grid(visible=False)
    axes.set_xticks(range(len(columns)), [text(value) for value in columns])
    axes.set_xlabel(figure.label(figure.x))
    if figure.by:
        axes.set_yticks(range(len(lines)), [text(value) for value in lines])
        axes.set_ylabel(figure.label(figure.by))


_KINDS = {"curves": _curves, "bars": _bars, "heat": _heat}


def values(rows: Sequence[Row], key: str) -> list[Any]:
    """The distinct values of `key`: numbers in order, anything else as it comes."""
    distinct = list(dict.fromkeys(row[key] for row in rows if row.get(key) is not None))
    if all(isinstance(value, int | float) for value in distinct):
        return sorted(distinct)
    return distinct


def text(value: Any) -> str:
    """A value as an axis or a legend shows it."""
    if isinstance(value, float):
        return "∞" if value == math.inf else f"{value:g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _places(figure: Figure, rows: Sequence[Row]) -> tuple[dict[Any, float], list[str]]:
    """Where each x stands: rounds where they are, values of a key side by side."""
    distinct = values(rows, figure.x)
    if figure.x == ROUND:
        return {x: float(x) for x in distinct}, []
    return {x: float(n) for n, x in enumerate(distinct)}, [text(x) for x in distinct]


def _x_axis(figure: Figure, names: Sequence[str], axes: Axes) -> None:
    axes.set_xlabel(figure.label(figure.x))
    if names:
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.5, len(names) - 0.5)


def _groups(
    figure: Figure, rows: Sequence[Row], everything: Sequence[Row]
) -> Iterator[tuple[Any, list[Row]]]:
    if not figure.by:
        yield "", list(rows)
        return
    for value in values(everything, figure.by):
        yield value, [row for row in rows if row[figure.by] == value]


def _over_x(figure: Figure, rows: Sequence[Row]) -> Iterator[tuple[Any, Spread]]:
    """The spread over seeds at each x; of the worst value of `worst`, where one is named."""
    for x in values(rows, figure.x):
        here = [row for row in rows if row[figure.x] == x]
        if not figure.worst:
            yield x, _spread(figure, here)
            continue
        options = [
            _spread(figure, [row for row in here if row[figure.worst] == value])
            for value in values(here, figure.worst)
        ]
        there = [found for found in options if found.count] or options
        yield x, (max if figure.lower_is_better else min)(there, key=lambda found: found.mean)


def _all_spreads(figure: Figure, rows: Sequence[Row]) -> Iterator[Spread]:
    panels = values(rows, figure.panels) if figure.panels else [None]
    for panel in panels:
        some = [row for row in rows if panel is None or row[figure.panels] == panel]
        for _, group in _groups(figure, some, rows):
            yield from (found for _, found in _over_x(figure, group))


def _spread(figure: Figure, rows: Sequence[Row]) -> Spread:
    numbers = [row[figure.measure] for row in rows if row.get(figure.measure) is not None]
    return spread([float(number) for number in numbers])


def _holds(row: Row, where: dict[str, Any]) -> bool:
    return all(
        row[key] in wanted if isinstance(wanted, list) else row[key] == wanted
        for key, wanted in where.items()
    )


def _refuse_hidden(figure: Figure, rows: Sequence[Row], keys: Sequence[str]) -> None:
    """Every key has to be known, and every key that varies shown."""
    used = [figure.x, figure.by, figure.panels, figure.worst]
    for key in filter(None, [*used, *figure.where]):
        if key not in keys and not (key == figure.x == ROUND):
            raise Refused(
                f"figure {figure.name!r} names {key!r}, which the grid does not vary; "
                f"{expected(key, [*keys, ROUND])}"
            )
    names = {name for row in rows for name in row}
    if figure.measure not in names:
        raise Refused(
            f"figure {figure.name!r} shows {figure.measure!r}; {expected(figure.measure, [*names])}"
        )
    shown = [row for row in rows if _holds(row, figure.where)]
    hidden = [key for key in keys if key not in used and len(values(shown, key)) > 1]
    if hidden:
        raise Refused(
            f"figure {figure.name!r} would average over {', '.join(hidden)}; show it by x, by or "
            "panels, fix it by where, or name it as worst"
        )
