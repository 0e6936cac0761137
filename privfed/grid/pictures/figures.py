"""The declarations of a grid's figures, and their checks before the grid runs.

The style is readable in print and for colour-blind readers: each line has its own marker and dash,
and colours are the palette of Okabe & Ito (2008). Black in the palette is replaced by a grey, on
which the hatching and whiskers of bars are visible.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from privfed.core.errors import Refused
from privfed.core.parts import Part, expected
from privfed.grid.results import Row, cell_of

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
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


ROUND = "round"
PROGRESS = (ROUND, "examples", "bytes", "device_seconds")
"""The quantities of a run's progress that a figure's `x` may name; all except rounds are measured
in simulations only."""


class Figure(Part):
    """One figure, written to `name`.svg and `name`.png.

    It shows the mean of `measure` over seeds, and never averages over a varied key: each key with
    several values must be `x`, `by`, `panels` or `worst`, or have a single value in `where`. Keys
    are those of the run file that the grid varies, such as "privacy.epsilon", and "method".
    """

    name: str = Field(pattern=r"^[\w. -]+$", description="a name for a file")
    """The name of the figure's files, without the ending."""
    kind: Literal["curves", "heat", "bars"] = "curves"
    """"curves" are lines, "bars" groups of bars. "heat" is a heat map, with the success rate of
    targeted attacks in brackets, and the numbers of seeds and rounds in the title."""
    measure: str = ""
    """The metric to draw; empty: the first metric of the loss."""
    x: str
    """The key on the horizontal axis, or a quantity of a run's progress: "round", "examples",
    "bytes", "device_seconds"."""
    by: str = ""
    """The key each value of which has a line, a series of bars, or a row of the heat map; empty:
    none."""
    panels: str = ""
    """The key each value of which has a panel; empty: one panel."""
    worst: str = ""
    """The key of which each point shows only the value with the worst mean over seeds; empty: none.
    """
    where: dict[str, Any] = {}
    """Values by key: only runs with these values are shown; a list permits any value in it."""
    lower_is_better: bool | None = None
    """Whether lower values are better; None: as the metric defines it (`privfed.grid.tables`)."""
    log: bool = False
    """Whether the horizontal axis is logarithmic; only if `x` is a quantity of a run's progress."""
    title: str = ""
    """The title above the figure."""
    labels: dict[str, str] = {}
    """Labels to print for keys and metrics, by name."""

    def label(self, key: str) -> str:
        """Returns the label of a key or metric: as set in `labels`, or else its name as words."""
        return self.labels.get(key, key.replace(".", " ").replace("_", " "))


def check_figures(figures: Sequence[Figure], varied: Mapping[str, Sequence[Any]]) -> None:
    """Checks the figures of a grid before the grid runs.

    Args:
      figures: the figures.
      varied: the values of each key that the grid varies.

    Raises:
      Refused: if two figures have the same name, or a figure cannot be drawn with these keys.
    """
    names = [figure.name for figure in figures]
    for figure in figures:
        if names.count(figure.name) > 1:
            raise Refused(
                f"two figures have the name {figure.name!r}, but each is written to a file of its "
                "name; rename one"
            )
        refuse_unknown(figure, [*varied])
        if figure.log and figure.x not in PROGRESS:
            raise Refused(
                f"figure {figure.name!r}: log is set, but x is {figure.x!r} and not a run's "
                f"progress ({', '.join(PROGRESS)}); remove log"
            )
        refuse_averaging(figure, varied)
        for key, fixed in figure.where.items():
            options = [cell_of(value) for value in varied[key]]
            if not all(value in options for value in listed(fixed)):
                raise Refused(
                    f"figure {figure.name!r}: where.{key!r} is {fixed!r}; expected one of "
                    f"{options}, the values in the grid"
                )


def values(rows: Sequence[Row], key: str) -> list[Any]:
    """Returns the distinct values of the column `key`: sorted if all are numbers, else in order of
    `rows`.
    """
    distinct = list(dict.fromkeys(row[key] for row in rows if row.get(key) is not None))
    if all(isinstance(value, int | float) for value in distinct):
        return sorted(distinct)
    return distinct


def text(value: Any) -> str:
    """Returns a value as text for an axis or a legend."""
    if isinstance(value, float):
        return "∞" if value == math.inf else f"{value:g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    shown = textwrap.shorten(str(value), 30, placeholder="…") or "(empty)"
    return f"\u200b{shown}" if shown.startswith("_") else shown  # legends omit names with "_"


def holds(row: Mapping[str, Any], where: dict[str, Any]) -> bool:
    """Whether `row` has the values that `where` fixes; a list there permits any value in it."""
    return all(row[key] in listed(fixed) for key, fixed in where.items())


def refuse_unknown(figure: Figure, keys: Sequence[str]) -> None:
    """Raises `Refused` if `figure` names a key that is not in `keys`, or uses one twice.

    The key `x` may also be a quantity of a run's progress (`PROGRESS`).
    """
    used = [key for key in (figure.x, figure.by, figure.panels, figure.worst) if key]
    for key in [*used, *figure.where]:
        if key not in keys and not (key == figure.x and key in PROGRESS):
            raise Refused(
                f"figure {figure.name!r} names {key!r}, which the grid does not vary; "
                f"{expected(key, [*keys, *PROGRESS])}"
            )
    if len(set(used)) < len(used):
        raise Refused(f"figure {figure.name!r} uses a key twice ({used}); use each key once")


def refuse_averaging(figure: Figure, varied: Mapping[str, Sequence[Any]]) -> None:
    """Raises `Refused` if `figure` would average over a varied key with several values."""
    used = {figure.x, figure.by, figure.panels, figure.worst}
    fixed = {key for key, value in figure.where.items() if len(listed(value)) == 1}
    hidden = [
        key for key, options in varied.items() if len(options) > 1 and key not in used | fixed
    ]
    if hidden:
        raise Refused(
            f"figure {figure.name!r} would average over {', '.join(hidden)}; name each of these "
            "keys in x, by, panels or worst, or fix its value in where"
        )


def listed(fixed: Any) -> list[Any]:
    """Returns the values that `fixed`, an entry of `where`, permits, as tables write them."""
    return [cell_of(value) for value in (fixed if isinstance(fixed, list) else [fixed])]
