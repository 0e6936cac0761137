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
    """Returns a context with a figure of `size` inches, and its panels by row.

    The figure must be drawn and saved within the context, where the style is in effect.
    """
    with matplotlib.rc_context({**STYLE, "axes.grid": grid}):
        figure = Figure(figsize=size)
        panels = figure.subplots(rows, columns, sharey=sharey, squeeze=False)
        yield figure, panels.tolist()


def image(figure: Figure, kind: str, dpi: int, metadata: dict[str, Any] | None = None) -> bytes:
    """Returns the file of a figure.

    Args:
      figure: the figure.
      kind: "svg", "png" or "pdf".
      dpi: dots per inch.
      metadata: entries of the file; None values remove a default.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
    return buffer.getvalue()
