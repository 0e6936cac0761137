"""Figures for a page: lines over rounds and over δ, distinguished by dash and marker.

A drawing by matplotlib is embedded in the page as SVG, with the page's colours, unique element ids,
and text as text elements. The drawing loads no other resource, and styles in it that would affect
the rest of the page are removed.
"""

from __future__ import annotations

import contextlib
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import matplotlib
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from privfed.core.text import number, visible
from privfed.grid.pictures.figures import COLOURS, DASHES, MARKERS
from privfed.report.canvas import canvas, image
from privfed.report.page.blocks import Figures, Picture

_PIXELS = 1.45
"""Largest displayed size of a drawing, in pixels per point."""
_PROLOGUE = re.compile(r"\A.*?(?=<svg\b)", re.DOTALL)
_LEFT_OUT = re.compile(r"<metadata>.*?</metadata>|<style\b.*?</style>|<!--.*?-->", re.DOTALL)
_OPENING = re.compile(r"\A<svg\b[^>]*>", re.DOTALL)
_BOX = re.compile(r'viewBox="([\d. -]+)"')
_NAME = re.compile(r'(\bid="|href="#|url\(#)')
_THEMED = {
    **{colour.lower(): f"var(--series-{place})" for place, colour in enumerate(COLOURS[:-1])},
    "#000000": "currentColor",
    "#ffffff": "var(--page)",
    "#dddddd": "var(--rule)",
    "#888888": "var(--quiet)",
}
"""CSS colours of the page, by the colour of the drawing that they replace."""
_COLOUR = re.compile("|".join(_THEMED), re.IGNORECASE)
_TAG = re.compile(r"<[^>]*>")


def inline(svg: bytes, name: str, title: str, description: str, *, themed: bool = True) -> Markup:
    """Returns a drawing as an SVG element that can be embedded in a page.

    Args:
      svg: the drawing, as matplotlib writes it.
      name: a prefix, unique in the page, of all element ids in the drawing.
      title: the title, for screen readers.
      description: the description, for screen readers.
      themed: whether colours are replaced by those of the page.

    Raises:
      ValueError: if `svg` is not a drawing.
    """
    text = _LEFT_OUT.sub("", _PROLOGUE.sub("", visible(svg.decode())))
    opening = _OPENING.match(text)
    box = _BOX.search(opening[0]) if opening else None
    if opening is None or box is None:
        raise ValueError("no drawing in SVG")
    inside = text[opening.end() :].replace("xlink:href=", "href=")
    inside = _NAME.sub(rf"\g<1>{name}-", inside)
    if themed:
        inside = _TAG.sub(lambda tag: _COLOUR.sub(_in_theme, tag[0]), inside)
    wide = float(box[1].split()[2]) * _PIXELS
    head = (
        f'<svg class="drawing" viewBox="{box[1]}" style="max-width: {wide:.0f}px" role="img" '
        f'aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(visible(title))}</title>'
        f'<desc id="{name}-desc">{escape(visible(description))}</desc>'
    )
    return Markup(head + inside)


def _in_theme(colour: re.Match[str]) -> str:
    return _THEMED[colour[0].lower()]


_SIZE = (4.4, 2.9)
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


def rounded(value: float | None) -> str:
    """Formats a number to five digits; a dash for None."""
    return number(value if value is None or not math.isfinite(value) else float(f"{value:.5g}"))


@dataclass(frozen=True)
class Line:
    """A line of a figure, with its label and its points (x, y)."""

    label: str
    points: Sequence[tuple[float, float]]

    @property
    def drawable(self) -> Sequence[tuple[float, float]]:
        """The points with finite coordinates."""
        return [(x, y) for x, y in self.points if math.isfinite(x) and math.isfinite(y)]


@dataclass(frozen=True)
class Axes:
    """The axes of a figure.

    Attributes:
      x: label of the x axis.
      y: label of the y axis.
      words: a function that formats a value of y for tables and descriptions.
      log: whether x is logarithmic.
      level: label and value of a horizontal reference line; None for no line.
      from_zero: whether y begins at 0.
      top: the upper end of y, for example 1 for a probability; None for the data's.
    """

    x: str
    y: str
    words: Callable[[float | None], str] = rounded
    log: bool = False
    level: tuple[str, float] | None = None
    from_zero: bool = False
    top: float | None = None


def lines_picture(name: str, title: str, axes: Axes, lines: Sequence[Line]) -> Picture | None:
    """Draws lines as a picture with a table of their numbers.

    Args:
      name: a prefix, unique in the page, of all element ids in the drawing.
      title: the title.
      axes: the axes.
      lines: the lines.

    Returns:
      The picture; None if no line has a finite point.
    """
    drawable = [line for line in lines if line.drawable]
    if not drawable:
        return None
    with without_warnings(), canvas(1, 1, _SIZE) as (figure, ((panel,),)):
        for place, line in enumerate(drawable):
            panel.plot(
                *zip(*line.drawable, strict=True),
                color=COLOURS[place % (len(COLOURS) - 1)],
                linestyle=DASHES[place % len(DASHES)],
                marker=MARKERS[place % len(MARKERS)],
                markersize=4,
                label=visible(line.label),
            )
        if axes.level and math.isfinite(axes.level[1]):
            label, height = axes.level
            panel.axhline(height, color="#000000", linewidth=1, linestyle=(0, (1, 2)), label=label)
        panel.set(xlabel=visible(axes.x), ylabel=visible(axes.y))
        if axes.log:
            panel.set_xscale("log")
            panel.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        else:
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(places := {x for line in drawable for x, _ in line.drawable}) == 1:
            panel.set_xticks([*places])
        if axes.top is not None:
            panel.set_ylim(top=1.02 * axes.top)
        if axes.from_zero:
            panel.set_ylim(bottom=0)
        panel.legend()
        drawn = as_svg(figure)
    words = _description(axes, lines)
    return Picture(inline(drawn, name, title, words), title, _numbers(title, axes, drawable))


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Returns a context without `UserWarning`s, in which "$" in a figure begins no formula."""
    with warnings.catch_warnings(), matplotlib.rc_context({"text.parse_math": False}):
        warnings.simplefilter("ignore", UserWarning)
        yield


def as_svg(figure: Figure) -> bytes:
    """Returns the figure as SVG, without a background and without metadata."""
    figure.patch.set_visible(False)
    for panel in figure.axes:
        panel.patch.set_visible(False)
    return image(figure, "svg", 72, _NO_METADATA)


def _description(axes: Axes, lines: Sequence[Line]) -> str:
    """Describes the picture by the first and last value of each line."""
    ends = [
        f"{line.label} goes from {axes.words(line.drawable[0][1])} to "
        f"{axes.words(line.drawable[-1][1])}"
        for line in lines
        if line.drawable
    ]
    level = f"; {axes.level[0]} is {axes.words(axes.level[1])}" if axes.level else ""
    return f"{axes.y} over {axes.x}: {'; '.join(ends)}{level}."


def _numbers(title: str, axes: Axes, lines: Sequence[Line]) -> Figures:
    """Returns the points of all lines as a table, with a row for each x."""
    by_x: dict[float, dict[str, float]] = {}
    for line in lines:
        for x, y in line.points:
            by_x.setdefault(x, {})[line.label] = y
    labels = [line.label for line in lines]
    rows = [
        [rounded(x), *(axes.words(at.get(label)) for label in labels)] for x, at in by_x.items()
    ]
    everything = frozenset(range(len(labels) + 1))
    return Figures(f"{title}: the numbers", [axes.x, *labels], rows, everything)
