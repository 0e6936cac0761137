"""Figures in privfed's style, drawn without a display."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from privfed.grid.pictures.figures import STYLE

Panels = list[list[Axes]]


@contextlib.contextmanager
def canvas(
    rows: int,
    columns: int,
    size: tuple[float, float],
    *,
    sharey: bool = False,
    grid: bool = True,
) -> Iterator[tuple[Figure, Panels]]:
    """Returns a context with a figure of `size` (width, height) in inches, and its panels.

    The figure must be drawn and saved within the context, where privfed's style is in effect.

    Args:
      rows: number of rows of panels.
      columns: number of columns of panels.
      size: width and height of the figure, in inches.
      sharey: whether all panels have the same y axis.
      grid: whether panels have grid lines.

    Returns:
      A context that yields the figure, and a list of panels for each row.
    """
    with matplotlib.rc_context({**STYLE, "axes.grid": grid}):
        figure = Figure(figsize=size)
        panels = figure.subplots(rows, columns, sharey=sharey, squeeze=False)
        yield figure, panels.tolist()


def image(figure: Figure, kind: str, dpi: int, metadata: dict[str, Any] | None = None) -> bytes:
    """Returns the content of an image file of the figure.

    Args:
      figure: the figure.
      kind: "svg", "png" or "pdf".
      dpi: dots per inch.
      metadata: the file's metadata by name; a value of None removes a default of matplotlib.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
    return buffer.getvalue()
