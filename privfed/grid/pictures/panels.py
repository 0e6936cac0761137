"""Draws one panel of a figure: curves with bands, bars with whiskers, or a heat map of fields.

Heat maps have the colour map cividis (Nunez, Anderton & Renslow 2018) and a number in every field.
In these functions, `rows` are the table rows of one panel, and `all_rows` those of all panels,
which have the same positions on the axes, colours and scales.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from privfed.grid.pictures.figures import COLOURS, DASHES, MARKERS, PROGRESS, Figure, text, values
from privfed.grid.results import Row
from privfed.grid.tables import Spread, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEW_DECADES = 20.0
"""A logarithmic axis has tick labels within decades if the ratio of its ends is below this."""
_WIDE = 40
"""Number of characters of tick labels that fit side by side under one panel."""
ATTACK_SUCCESS = "attack_success"
"""Name of the table column with the attack success rate."""
_SPACING = 0.12
"""Distance between points of different series at one x, relative to that between values of x."""

Point = tuple[float, Spread]
"""A position on the x axis, and the spread over seeds there."""


def draw_curves_panel(
    figure: Figure, rows: Sequence[Row], all_rows: Sequence[Row], axes: Axes
) -> None:
    """Draws means over seeds as lines, with a band from the smallest to the largest value.

    If a value of x is text, which has no order, points with whiskers are drawn instead of lines.
    `rows` are those of this panel; `all_rows`, those of all panels, determine axes and colours.
    """
    positions, names = _places(figure, all_rows)
    groups = list(_groups(figure, rows, all_rows))
    named = any(isinstance(x, str) for x in positions)
    draw_series, apart = (_draw_points, _SPACING) if named else (_draw_curve, 0.0)
    for number, (value, group) in enumerate(groups):
        shift = apart * (number - (len(groups) - 1) / 2)
        shifted = {x: place + shift for x, place in positions.items()}
        if points := list(_finite(axes, shifted, _over_x(figure, group, all_rows))):
            draw_series(axes, points, _look(figure, number), text(value))
    _x_axis(figure, names, axes)


def _look(figure: Figure, number: int) -> dict[str, Any]:
    """Returns the style (colour, marker, dash) of the series with the index `number`."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number % len(DASHES)],
        "marker": None if figure.x in PROGRESS else MARKERS[number % len(MARKERS)],
    }


def _draw_curve(axes: Axes, points: Sequence[Point], look: dict[str, Any], label: str) -> None:
    xs, means = [x for x, _ in points], [over_seeds.mean for _, over_seeds in points]
    axes.plot(xs, means, markersize=4, linewidth=1.4, label=label, **look)
    low, high = ([getattr(over_seeds, end) for _, over_seeds in points] for end in ("low", "high"))
    axes.fill_between(xs, low, high, color=look["color"], alpha=0.18, linewidth=0)


def _draw_points(axes: Axes, points: Sequence[Point], look: dict[str, Any], label: str) -> None:
    axes.errorbar(
        [x for x, _ in points],
        [over_seeds.mean for _, over_seeds in points],
        yerr=_whiskers(points),
        capsize=2,
        markersize=4,
        label=label,
        **{**look, "linestyle": "none"},
    )


def _whiskers(points: Sequence[Point]) -> list[list[float]]:
    """Returns each point's distance from its mean to its smallest and to its largest value."""
    return [
        [over_seeds.mean - over_seeds.low for _, over_seeds in points],
        [over_seeds.high - over_seeds.mean for _, over_seeds in points],
    ]


def draw_bars_panel(
    figure: Figure, rows: Sequence[Row], all_rows: Sequence[Row], axes: Axes
) -> None:
    """Draws means over seeds as bars, with a whisker from the smallest to the largest value.

    `rows` are those of this panel; `all_rows`, those of all panels, determine axes and colours.
    """
    positions, names = _places(figure, all_rows)
    groups = list(_groups(figure, rows, all_rows))
    width = 0.8 / len(groups)
    for number, (value, group) in enumerate(groups):
        points = list(_finite(axes, positions, _over_x(figure, group, all_rows)))
        shift = (number - (len(groups) - 1) / 2) * width
        means = [over_seeds.mean for _, over_seeds in points]
        axes.bar(
            [x + shift for x, _ in points],
            means,
            width * 0.92,
            color=COLOURS[number % len(COLOURS)],
            edgecolor="black",
            linewidth=0.4,
            hatch=("", "///", "...", "xxx")[number % 4],
            label=text(value),
            yerr=_whiskers(points),
            error_kw={"elinewidth": 1, "capsize": 2},
        )
    axes.grid(axis="x", visible=False)
    _x_axis(figure, names, axes)


def draw_heat_panel(
    figure: Figure, rows: Sequence[Row], all_rows: Sequence[Row], axes: Axes
) -> None:
    """Draws a heat map with a field for each x and value of `by`: the mean over seeds, or a dash.

    If attacks are targeted, the attack success rate is below the mean, in brackets. `rows` are
    those of this panel; `all_rows`, those of all panels, determine axes and colours.
    """
    columns = values(all_rows, figure.x)
    lines = values(all_rows, figure.by) if figure.by else [None]
    field = _means(figure, rows, all_rows)
    success = {"measure": ATTACK_SUCCESS, "lower_is_better": True}
    met = _means(figure.model_copy(update=success), rows, all_rows)
    low, high = _range_of_means(figure, all_rows)
    axes.set_facecolor("#eeeeee")
    axes.imshow(
        field, cmap="cividis", vmin=low, vmax=high if high > low else low + 1, aspect="auto"
    )
    numbers = np.vectorize(_short)(field)
    if shows_success(figure, all_rows):
        numbers = np.char.add(numbers, np.where(np.isnan(met), "", np.vectorize(_bracketed)(met)))
    _write_numbers(field, numbers, (low + high) / 2, axes)
    axes.grid(visible=False)
    names = [text(value) for value in columns]
    axes.set_xticks(range(len(columns)), names)
    _slant(axes, names)
    axes.set_xlabel(figure.label(figure.x))
    axes.set_yticks(range(len(lines)), [text(value) if figure.by else "" for value in lines])
    if figure.by:
        axes.set_ylabel(figure.label(figure.by))


def shows_success(figure: Figure, rows: Sequence[Row]) -> bool:
    """Whether attack success rates are shown: in a heat map of another metric, if they were
    measured.
    """
    measured = any(row.get(ATTACK_SUCCESS) is not None for row in rows)
    return measured and figure.kind == "heat" and figure.measure != ATTACK_SUCCESS


def _means(figure: Figure, rows: Sequence[Row], all_rows: Sequence[Row]) -> np.ndarray:
    """Returns the mean over seeds of `rows`, shape `[by, x]`; NaN without runs.

    The axes have each value of `by` and of x that occurs in `all_rows`.
    """
    columns = values(all_rows, figure.x)
    field = np.full((len(values(all_rows, figure.by)) if figure.by else 1, len(columns)), np.nan)
    for line, (_, group) in enumerate(_groups(figure, rows, all_rows)):
        for x, over_seeds in _over_x(figure, group, all_rows):
            if over_seeds.count:
                field[line, columns.index(x)] = over_seeds.mean
    return field


def _range_of_means(figure: Figure, all_rows: Sequence[Row]) -> tuple[float, float]:
    """Returns the smallest and the largest finite mean of all panels; both 0 without any."""
    spreads = _spreads_of_all_panels(figure, all_rows)
    means = [over_seeds.mean for over_seeds in spreads if over_seeds.count]
    finite = [mean for mean in means if math.isfinite(mean)] or [0.0]
    return min(finite), max(finite)


def _write_numbers(field: np.ndarray, numbers: np.ndarray, middle: float, axes: Axes) -> None:
    """Writes each field's text, in black if the field's value exceeds `middle`, else in white."""
    for (line, column), value in np.ndenumerate(field):
        colour = "black" if math.isnan(value) or value > middle else "white"
        number = str(numbers[line, column])
        axes.text(column, line, number, ha="center", va="center", color=colour, fontsize=8)


def _places(figure: Figure, rows: Sequence[Row]) -> tuple[dict[Any, float], list[str]]:
    """Returns the position of each value of x on the axis, and the tick labels (none for progress).

    If x measures a run's progress, its value is the position. The values of a key have the
    positions 0, 1, … and are printed as tick labels.
    """
    distinct = values(rows, figure.x)
    if figure.x in PROGRESS:
        return {x: float(x) for x in distinct}, []
    return {x: float(n) for n, x in enumerate(distinct)}, [text(x) for x in distinct]


def _x_axis(figure: Figure, names: Sequence[str], axes: Axes) -> None:
    axes.set_xlabel(figure.label(figure.x))
    if figure.x in PROGRESS:
        from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

        axes.set_xscale("log" if figure.log else "linear")
        low, high = axes.get_xlim()  # the limits of the drawn data
        if figure.log and high < _FEW_DECADES * low:
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if names:
        axes.set_xticks(range(len(names)), names)
        _slant(axes, names)
        axes.set_xlim(-0.5, len(names) - 0.5)


def _slant(axes: Axes, names: Sequence[str]) -> None:
    """Rotates the tick labels `names` if they would overlap."""
    if max(map(len, names), default=0) * len(names) > _WIDE:
        axes.tick_params(axis="x", rotation=30)
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")


def _groups(
    figure: Figure, rows: Sequence[Row], all_rows: Sequence[Row]
) -> Iterator[tuple[Any, list[Row]]]:
    """Yields each value of `by` that occurs in `all_rows`, with its rows among `rows`.

    Without `by`, yields one group with all `rows`.
    """
    if not figure.by:
        yield "", list(rows)
        return
    for value in values(all_rows, figure.by):
        yield value, [row for row in rows if row[figure.by] == value]


def _over_x(
    figure: Figure, rows: Sequence[Row], all_rows: Sequence[Row]
) -> Iterator[tuple[Any, Spread]]:
    """Yields each x with the spread over seeds; with `worst`, that at the key's worst value.

    The spread is empty if a value of `worst` has no result.
    """
    for x in values(rows, figure.x):
        at_x = [row for row in rows if row[figure.x] == x]
        if not figure.worst:
            yield x, _spread(figure, at_x)
            continue
        options = [
            _spread(figure, [row for row in at_x if row[figure.worst] == value])
            for value in values(all_rows, figure.worst)
        ]
        if not all(option.count for option in options):
            yield x, spread([])  # if a value has no result, the worst is not known
            continue
        yield x, (max if figure.lower_is_better else min)(options, key=lambda option: option.mean)


def _finite(
    axes: Axes, positions: Mapping[Any, float], spreads: Iterable[tuple[Any, Spread]]
) -> Iterator[tuple[float, Spread]]:
    """Yields finite spreads with their positions on x; writes "∞" where a spread is infinite."""
    for x, over_seeds in spreads:
        if over_seeds.count and math.isfinite(over_seeds.high):
            yield positions[x], over_seeds
        elif over_seeds.count:
            foot = axes.get_xaxis_transform()
            axes.text(positions[x], 0.02, "∞", transform=foot, ha="center", fontsize=8)


def _spreads_of_all_panels(figure: Figure, rows: Sequence[Row]) -> Iterator[Spread]:
    panels = values(rows, figure.panels) if figure.panels else [None]
    for panel in panels:
        in_panel = [row for row in rows if panel is None or row[figure.panels] == panel]
        for _, group in _groups(figure, in_panel, rows):
            yield from (over_seeds for _, over_seeds in _over_x(figure, group, rows))


def _spread(figure: Figure, rows: Sequence[Row]) -> Spread:
    numbers = [row[figure.measure] for row in rows if row.get(figure.measure) is not None]
    return spread([float(number) for number in numbers])


def _short(value: float) -> str:
    """Returns a number as text for a field of a heat map; a dash for NaN."""
    if math.isnan(value):
        return "—"
    return text(round(value, 3) if abs(value) < 1 else float(f"{value:.3g}"))


def _bracketed(value: float) -> str:
    """Returns the second number of a field as text: in brackets, on a new line."""
    return f"\n({_short(value)})"
