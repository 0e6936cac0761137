"""Figures of measured times, from their table: `python -m experiments.benchmarks.pictures`.

Ratios to privfed over ten runs, rounds by framework, one panel for each workload, and the growth of
time: `ten_runs.svg`, `rounds.svg` and `growth.svg` in the table's folder.
"""

from __future__ import annotations

import argparse
import io
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accounting.durable import write_atomically
from experiments.benchmarks.ten_runs import ADDED, FAST, ratios
from experiments.benchmarks.work.growth import Growth, draw
from experiments.benchmarks.work.measured import Measured, read_rows
from privfed.grid.pictures.figures import COLOURS, MARKERS, STYLE

RESULTS = Path(__file__).parent / "results"
_ACROSS = "time per round (× privfed)"


def best(rows: Sequence[Measured]) -> list[Measured]:
    """Returns each framework in its fastest setting under DP; privfed's are its automatic settings.

    The fastest comes first.
    """
    fastest: dict[str, Measured] = {}
    for row in rows:
        name = framework(row)
        if name and (name not in fastest or row.seconds < fastest[name].seconds):
            fastest[name] = row
    return sorted(fastest.values(), key=lambda row: row.seconds)


def framework(row: Measured) -> str:
    """Returns the framework of `row`; empty for manual settings of privfed, and without DP."""
    if not row.private:
        return ""
    if row.way.startswith("privfed"):
        return "privfed" if row.way.startswith("privfed auto") else ""
    return row.way


def draw_rounds(rows: Sequence[Measured], path: Path) -> None:
    """Draws a panel for each workload: medians with quartiles, and their ratio to privfed's."""
    works = list(dict.fromkeys(row.work for row in rows))
    panels = [best([row for row in rows if row.work == work]) for work in works]
    names = list(dict.fromkeys(framework(row) for panel in panels for row in panel))
    looks = {name: (COLOURS[i], MARKERS[i]) for i, name in enumerate(names)}
    across = min(2, len(works))
    down = -(-len(works) // across)

    def fill(grid: Any) -> None:
        for axes, work, panel in zip(grid.flat, works, panels, strict=False):
            _panel(axes, panel, looks)
            axes.set_title(work, fontsize=9)
        for axes in grid.flat[len(works) :]:
            axes.set_visible(False)

    _drawn((down, across), (3.7 * across, 0.6 + 1.3 * down), fill, path)


def _panel(axes: Any, rows: Sequence[Measured], looks: dict[str, tuple[str, str]]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ours = next((row.seconds for row in rows if framework(row) == "privfed"), None)
    for place, row in enumerate(rows):
        colour, marker = looks[framework(row)]
        spread = [[row.seconds - row.low], [row.high - row.seconds]]
        axes.errorbar(
            [row.seconds], [place], xerr=spread, fmt=marker, color=colour, capsize=2, markersize=4
        )
        if ours and framework(row) != "privfed":
            where = {"textcoords": "offset points", "va": "center"}
            axes.annotate(times(row.seconds / ours), (row.high, place), (5, 0), **where)
    axes.set_xscale("log")
    low, high = min(row.low for row in rows), max(row.high for row in rows)
    axes.set_xlim(low / 1.6, high * 4)
    few = high / low > 30
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if few else (1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(range(len(rows)), [framework(row) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)  # the fastest on top


def draw_ratios(rows: Sequence[Measured], path: Path) -> None:
    """Draws each contender's time over privfed's, for each workload: median, least and greatest."""
    works = list(dict.fromkeys(row.work for row in rows))
    of_work = {work: ratios([row for row in rows if row.work == work]) for work in works}
    names = [name for name in of_work[works[0]] if name not in (FAST, ADDED)]

    def fill(grid: Any) -> None:
        from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

        axes, height = grid[0, 0], 0.8 / max(len(names), 1)
        greatest = 1.0
        for place, work in enumerate(works):
            for number, name in enumerate(names):
                values = of_work[work].get(name)
                if not values:
                    continue
                middle, low, high = statistics.median(values), min(values), max(values)
                greatest, y = max(greatest, high), place + (number - (len(names) - 1) / 2) * height
                axes.errorbar(
                    [middle],
                    [y],
                    xerr=[[middle - low], [high - middle]],
                    fmt=MARKERS[number],
                    color=COLOURS[number],
                    capsize=2,
                    markersize=4,
                    label=None if place else name,
                )
                where = {"textcoords": "offset points", "va": "center"}
                axes.annotate(times(middle), (high, y), (5, 0), **where)
        axes.axvline(1.0, color="0.6", linewidth=1)
        axes.set_xscale("log")
        axes.set_xlim(0.7, 2 * greatest)
        axes.xaxis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50, 100]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_yticks(range(len(works)), works)
        axes.set_ylim(len(works) - 0.5, -0.5)
        axes.legend(loc="lower right", frameon=False)

    _drawn((1, 1), (7.4, 0.9 + 0.55 * len(works)), fill, path)


def times(ratio: float) -> str:
    """Formats a ratio of times.

    >>> times(1.234), times(8.91), times(123.4)
    ('1.23 x', '8.9 x', '123 x')
    """
    digits = 2 if ratio < 2 else 1 if ratio < 10 else 0
    return f"{ratio:.{digits}f} x"


def duration(seconds: float) -> str:
    """A time in milliseconds or seconds.

    >>> duration(0.0077), duration(2.0)
    ('7.7 ms', '2 s')
    """
    return f"{seconds:g} s" if seconds >= 1 else f"{1e3 * seconds:g} ms"


def growths(rows: Sequence[Measured]) -> list[Growth]:
    """Returns the growth of time by each quantity."""
    kinds = dict.fromkeys(row.work for row in rows)
    series = ([row for row in rows if row.work == kind] for kind in kinds)
    return [
        Growth(
            points[0].work,
            tuple(row.size for row in points),
            tuple(row.low for row in points),
            tuple(row.seconds for row in points),
            tuple(row.high for row in points),
        )
        for points in series
    ]


def _drawn(shape: tuple[int, int], size: tuple[float, float], fill: Any, path: Path) -> None:
    """Writes the figure of `shape` panels filled by `fill` to `path`, in the format of its
    suffix.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(STYLE):
        canvas, grid = pyplot.subplots(*shape, figsize=size, squeeze=False)
        try:
            fill(grid)
            canvas.supxlabel(_ACROSS, fontsize=9)
            buffer = io.BytesIO()
            plain = {"metadata": {"Date": None}} if path.suffix == ".svg" else {"dpi": 150}
            canvas.savefig(buffer, format=path.suffix[1:], **plain)
        finally:
            pyplot.close(canvas)
    write_atomically(path, buffer.getvalue())


def draw_all(table: Path, kind: str = "svg") -> list[Path]:
    """Draws the figures of the table at `table` into its folder, and returns their paths."""
    rows_of, made = defaultdict(list), []
    for row in read_rows(table):
        rows_of[row.benchmark].append(row)
    if compared := rows_of["ten_runs"]:
        made.append(table.with_name(f"ten_runs.{kind}"))
        draw_ratios(compared, made[-1])
    if timed := rows_of["rounds"]:
        made.append(table.with_name(f"rounds.{kind}"))
        draw_rounds(timed, made[-1])
    if grown := growths(rows_of["scaling"]):
        made.append(table.with_name(f"growth.{kind}"))
        draw(grown, made[-1])
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("table", type=Path, nargs="?", help="the latest in results/, if left out")
    parser.add_argument("--format", default="svg", choices=["svg", "png"])
    arguments = parser.parse_args()
    tables = sorted(RESULTS.glob("*.csv"))
    if not (arguments.table or tables):
        raise SystemExit(f"no table in {RESULTS}; python -m experiments.benchmarks writes one")
    for path in draw_all(arguments.table or tables[-1], arguments.format):
        print(f"drawn: {path}")


if __name__ == "__main__":
    main()
