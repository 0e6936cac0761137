"""Pictures from a grid's tables: curves with bands, heat maps, bars. Nothing else is read.

Readable in print and for the colour-blind: the Okabe-Ito palette with a marker and a dash each
(Okabe & Ito 2008), cividis for maps (Nunez, Anderton & Renslow 2018), numbers in every field.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accounting.durable import write_atomically
from privfed.errors import Refused
from privfed.grid.figures import (
    PROGRESS,
    ROUND,
    Figure,
    holds,
    refuse_averaging,
    refuse_unknown,
    text,
    values,
)
from privfed.grid.results import DONE, Files, Row, Spread, cell_of, measures_of, read_table, spread
from privfed.parts import expected

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_ALSO = ("epsilon", "noise_multiplier", "seconds", "charges", "rounds", "aborted")
_ACROSS = 3
"""Panels side by side."""
_WIDE = 40
"""Characters that stand side by side under one panel."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")
STYLE: Any = {
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


def draw_all(
    files: Files,
    figures: Sequence[Figure],
    varied: Mapping[str, Sequence[Any]],
    columns: Sequence[str],
) -> list[Path]:
    """Draw every figure of a grid from its tables; the files written. Raises `Refused`.

    `columns` are the tables' keys: what varies, and what was tuned.
    """
    written = []
    words = [key for key, of in varied.items() if any(isinstance(cell_of(v), str) for v in of)]
    for figure in figures:
        whole = read_table(files.table, words)
        _refuse_other_grid(files.table, whole, columns)
        rows = read_table(files.rounds, words) if figure.x in PROGRESS else whole
        for path, content in draw(figure, rows, [*varied]).items():
            write_atomically(files.folder / path, content)
            written.append(files.folder / path)
    return written


def draw(figure: Figure, rows: Sequence[Row], keys: Sequence[str]) -> dict[str, bytes]:
    """The picture of `rows` as files by name. Raises `Refused` for keys that do not fit."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    refuse_unknown(figure, keys)
    if figure.x in PROGRESS:
        rows = _aligned(rows, keys, figure.x)
    held = [row for row in rows if holds(row, figure.where)]
    refuse_averaging(figure, {key: values(held, key) for key in keys})
    measured = [name for name in measures_of(keys, rows) if name not in PROGRESS]
    figure = figure.model_copy(update={"measure": figure.measure or next(iter(measured), "")})
    measures = {*measured, *_ALSO}
    if figure.measure not in measures:
        raise Refused(
            f"figure {figure.name!r} shows {figure.measure!r}; "
            f"{expected(figure.measure, [*measures])}"
        )
    shown = [row for row in rows if holds(row, figure.where) and row.get("status", DONE) == DONE]
    if not any(row.get(figure.measure) is not None for row in shown):
        raise Refused(f"figure {figure.name!r} has nothing to show: no cell has what it asks for")
    panels = values(shown, figure.panels) if figure.panels else [None]
    with matplotlib.rc_context(STYLE):
        across = min(len(panels), _ACROSS)
        down = -(-len(panels) // across)
        size = (1.2 + 3.4 * across, 0.3 + 2.8 * down)
        canvas, grid = pyplot.subplots(down, across, figsize=size, sharey=True, squeeze=False)
        places = [axes for line in grid for axes in line]
        try:
            for axes in places[len(panels) :]:
                axes.remove()
            for axes, panel in zip(places, panels, strict=False):
                some = [row for row in shown if panel is None or row[figure.panels] == panel]
                _KINDS[figure.kind](figure, some, shown, axes)
                if panel is not None:
                    axes.set_title(f"{figure.label(figure.panels)} {text(panel)}", fontsize=9)
            _finish(figure, shown, canvas, places[: len(panels)])
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
    title = figure.title
    if figure.kind == "heat" and not title:
        worst = f", worst over {figure.label(figure.worst)}" if figure.worst else ""
        title = f"{figure.label(figure.measure)}{worst}"
    if title:
        canvas.suptitle(textwrap.fill(title, 70), fontsize=10)


def _bytes(canvas: Canvas, kind: str) -> bytes:
    out = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    canvas.savefig(out, format=kind, dpi=160, metadata=metadata)
    return out.getvalue()


def _curves(figure: Figure, rows: Sequence[Row], everything: Sequence[Row], axes: Axes) -> None:
    """Means over seeds, with the band from the least seed to the greatest."""
    positions, names = _places(figure, everything)
    for number, (value, some) in enumerate(_groups(figure, rows, everything)):
        points = list(_finite(axes, positions, _over_x(figure, some, everything)))
        if not points:
            continue
        xs = [x for x, _ in points]
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(
            xs,
            [found.mean for _, found in points],
            color=colour,
            linestyle=DASHES[number % len(DASHES)],
            marker=None if figure.x in PROGRESS else _MARKERS[number % len(_MARKERS)],
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
        points = list(_finite(axes, positions, _over_x(figure, some, everything)))
        shift = (number - (len(groups) - 1) / 2) * width
        means = [found.mean for _, found in points]
        axes.bar(
            [x + shift for x, _ in points],
            means,
            width * 0.92,
            color=COLOURS[number % len(COLOURS)],
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
        for x, found in _over_x(figure, some, everything):
            if found.count:
                field[number, columns.index(x)] = found.mean
    means = [found.mean for found in _all_spreads(figure, everything) if found.count]
    finite = [mean for mean in means if math.isfinite(mean)] or [0.0]
    low, high = min(finite), max(finite)
    axes.set_facecolor("#eeeeee")
    axes.imshow(
        field, cmap="cividis", vmin=low, vmax=high if high > low else low + 1, aspect="auto"
    )
    for line in range(len(lines)):
        for column in range(len(columns)):
            value = field[line, column]
            bright = not math.isnan(value) and value > (low + high) / 2
            shown = "—" if math.isnan(value) else _short(value)
            colour = "black" if bright or math.isnan(value) else "white"
            axes.text(column, line, shown, ha="center", va="center", color=colour, fontsize=8)
    axes.grid(visible=False)
    names = [text(value) for value in columns]
    axes.set_xticks(range(len(columns)), names)
    _slant(axes, names)
    axes.set_xlabel(figure.label(figure.x))
    axes.set_yticks(range(len(lines)), [text(value) if figure.by else "" for value in lines])
    if figure.by:
        axes.set_ylabel(figure.label(figure.by))


_KINDS = {"curves": _curves, "bars": _bars, "heat": _heat}


def _aligned(rows: Sequence[Row], keys: Sequence[str], x: str) -> list[Row]:
    """Seeds of a cell process different numbers of examples: each round stands at their mean."""
    if any(row.get(x) is None for row in rows):
        raise Refused(
            f"a figure is over {x!r}, which not every run measured; set run.simulation_metrics = "
            f"true in all of them, or draw it over {ROUND!r}"
        )
    places: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        places.setdefault(tuple(row[key] for key in (*keys, ROUND)), []).append(float(row[x]))
    means = {place: sum(found) / len(found) for place, found in places.items()}
    return [{**row, x: means[tuple(row[key] for key in (*keys, ROUND))]} for row in rows]


def _refuse_other_grid(path: Path, rows: Sequence[Row], keys: Sequence[str]) -> None:
    names = [*rows[0]] if rows else []
    found = names[: names.index("seed")] if "seed" in names else names
    if set(found) != set(keys) or "status" not in names:
        raise Refused(
            f"{path} is the table of another grid: it varies {found}, the grid file {[*keys]}; run "
            "the experiment again"
        )


def _places(figure: Figure, rows: Sequence[Row]) -> tuple[dict[Any, float], list[str]]:
    """Where each x stands: rounds where they are, values of a key side by side."""
    distinct = values(rows, figure.x)
    if figure.x in PROGRESS:
        return {x: float(x) for x in distinct}, []
    return {x: float(n) for n, x in enumerate(distinct)}, [text(x) for x in distinct]


def _x_axis(figure: Figure, names: Sequence[str], axes: Axes) -> None:
    axes.set_xlabel(figure.label(figure.x))
    if figure.x in PROGRESS:
        from matplotlib.ticker import EngFormatter

        axes.set_xscale("log" if figure.log else "linear")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if names:
        axes.set_xticks(range(len(names)), names)
        _slant(axes, names)
        axes.set_xlim(-0.5, len(names) - 0.5)


def _slant(axes: Axes, names: Sequence[str]) -> None:
    """Long names stand aslant, so that they do not print over each other."""
    if max(map(len, names), default=0) * len(names) > _WIDE:
        axes.tick_params(axis="x", rotation=30)
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")


def _groups(
    figure: Figure, rows: Sequence[Row], everything: Sequence[Row]
) -> Iterator[tuple[Any, list[Row]]]:
    if not figure.by:
        yield "", list(rows)
        return
    for value in values(everything, figure.by):
        yield value, [row for row in rows if row[figure.by] == value]


def _over_x(
    figure: Figure, rows: Sequence[Row], everything: Sequence[Row]
) -> Iterator[tuple[Any, Spread]]:
    """The spread over seeds at each x; of the worst value of `worst`, where one is named."""
    for x in values(rows, figure.x):
        here = [row for row in rows if row[figure.x] == x]
        if not figure.worst:
            yield x, _spread(figure, here)
            continue
        options = [
            _spread(figure, [row for row in here if row[figure.worst] == value])
            for value in values(everything, figure.worst)
        ]
        if not all(found.count for found in options):
            yield x, spread([])  # without one of them, which was the worst is not known
            continue
        yield x, (max if figure.lower_is_better else min)(options, key=lambda found: found.mean)


def _finite(
    axes: Axes, positions: Mapping[Any, float], spreads: Iterable[tuple[Any, Spread]]
) -> Iterator[tuple[float, Spread]]:
    """What can be drawn, by place; an infinite value is written at the foot of the panel."""
    for x, found in spreads:
        if found.count and math.isfinite(found.high):
            yield positions[x], found
        elif found.count:
            foot = axes.get_xaxis_transform()
            axes.text(positions[x], 0.02, "∞", transform=foot, ha="center", fontsize=8)


def _all_spreads(figure: Figure, rows: Sequence[Row]) -> Iterator[Spread]:
    panels = values(rows, figure.panels) if figure.panels else [None]
    for panel in panels:
        some = [row for row in rows if panel is None or row[figure.panels] == panel]
        for _, group in _groups(figure, some, rows):
            yield from (found for _, found in _over_x(figure, group, rows))


def _spread(figure: Figure, rows: Sequence[Row]) -> Spread:
    numbers = [row[figure.measure] for row in rows if row.get(figure.measure) is not None]
    return spread([float(number) for number in numbers])


def _short(value: float) -> str:
    """A number that fits a field of a map."""
    return text(round(value, 3) if abs(value) < 1 else float(f"{value:.3g}"))
