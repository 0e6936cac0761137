"""A contact sheet: originals above, and below what each view gave away of them."""

from __future__ import annotations

from matplotlib.axes import Axes
from torch import Tensor

from privfed.leakage.inversion import Inverted
from privfed.report.attacks.leakage import decibels
from privfed.report.canvas import canvas, image

_MOST = 8
"""Columns, of however many were attacked."""


def contact_sheet(inverted: Inverted) -> bytes | None:
    """A PNG; None where examples are no pictures."""
    attack, views = inverted.attack, inverted.views
    shape, values = attack.picture, (attack.low, attack.high)
    if shape is None:
        return None
    columns = min(len(inverted.originals), _MOST)
    size = (2.0 + 1.0 * columns, 0.3 + 1.2 * (1 + len(views)))
    with canvas(1 + len(views), columns, size, grid=False) as (figure, panels):
        _draw_images(panels[0], "original", inverted.originals, shape, values)
        _name_clients(panels[0], inverted)
        for line, view in zip(panels[1:], views, strict=True):
            _draw_images(line, view.view.name, view.x, shape, values)
            for axes, psnr in zip(line, view.psnr, strict=False):
                axes.set_xlabel(decibels(psnr), fontsize=8, labelpad=2)
        return image(figure, "png", 110, {"Software": None})


def _draw_images(
    line: list[Axes], name: str, x: Tensor, shape: tuple[int, ...], values: tuple[float, float]
) -> None:
    """Images x `[B, *]` of `shape` (channels, height, width) beside each other, under a name.

    Their `values` lie between these two.
    """
    low, high = values
    for axes, example in zip(line, x, strict=False):
        pixels = example.reshape(shape).permute(1, 2, 0).clamp(low, high)
        pixels = (pixels - low) / (high - low)
        axes.imshow(pixels.squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1)
        axes.set(xticks=[], yticks=[])
    line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)


def _name_clients(line: list[Axes], inverted: Inverted) -> None:
    """Say above each column whose example it is."""
    each = inverted.options.examples
    for column, axes in enumerate(line):
        axes.set_title(f"client {inverted.clients[column // each]}", fontsize=8)
