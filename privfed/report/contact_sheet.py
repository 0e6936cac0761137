"""A contact sheet: originals above, and below what each view gave away of them."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING

from torch import Tensor

from privfed.grid.pictures.style import STYLE
from privfed.leakage.inversion import Inverted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST = 8
"""Columns, of however many were attacked."""


def contact_sheet(found: Inverted) -> bytes | None:
    """A PNG; None where examples are no pictures."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    shape = found.attack.picture
    if shape is None:
        return None
    columns = min(len(found.originals), _MOST)
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        size = (2.0 + 1.0 * columns, 0.3 + 1.2 * (1 + len(found.views)))
        canvas, grid = pyplot.subplots(1 + len(found.views), columns, figsize=size, squeeze=False)
        try:
            ranged = (found.attack.low, found.attack.high)
            _line(grid[0], "original", found.originals, shape, ranged)
            _label(grid[0], found)
            for line, each in zip(grid[1:], found.views, strict=True):
                _line(line, each.view.name, each.x, shape, ranged)
                for axes, quality in zip(line, each.psnr, strict=False):
                    axes.set_xlabel(decibels(quality), fontsize=8, labelpad=2)
            buffer = io.BytesIO()
            canvas.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
        finally:
            pyplot.close(canvas)
    return buffer.getvalue()


def decibels(value: float) -> str:
    """A PSNR as people read it; beyond 99 dB only rounding is left."""
    return "exact" if value > 99 or math.isinf(value) else f"{value:.1f} dB"


def _line(
    line: list[Axes], name: str, x: Tensor, shape: tuple[int, ...], ranged: tuple[float, float]
) -> None:
    for axes, image in zip(line, x, strict=False):
        pixels = image.reshape(shape).permute(1, 2, 0).clamp(*ranged)
        pixels = (pixels - ranged[0]) / (ranged[1] - ranged[0])
        axes.imshow(pixels.squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1)
        axes.set(xticks=[], yticks=[])
    line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)


def _label(line: list[Axes], found: Inverted) -> None:
    """Whose each column is."""
    each = found.options.examples
    for place, axes in enumerate(line):
        axes.set_title(f"client {found.clients[place // each]}", fontsize=8)
