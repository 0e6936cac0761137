"""Tables and pictures of privacy attacks on updates: inversion and property inference."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from rich.console import Group
from rich.table import Table
from rich.text import Text
from torch import Tensor

from accounting.statement import at_delta
from privfed.privacy_attacks.inversion import Inverted
from privfed.privacy_attacks.properties import Properties
from privfed.privacy_attacks.subject import SIMULATION, Subject
from privfed.report.canvas import canvas, image
from privfed.report.tables import counted, rows

_EXACT = 99
"""PSNR in decibels above which a reconstruction is exact up to rounding."""


def inversion_table(inverted: Inverted, out: Path) -> Group:
    """Returns a table of the quality of reconstructed examples, a line for each attacker's view.

    Args:
      inverted: the results of the attack.
      out: the folder to which the results were written.
    """
    table = _view_table("view", "observer", "PSNR", "SSIM", "MSE", "labels found")
    for view in inverted.views:
        ssim = f"{np.median(view.ssim):.2f}" if view.ssim else "—"
        labels = "—" if view.labels is None else f"{view.labels:.0%}"
        psnr = decibels(float(np.median(view.psnr)))
        mse = f"{np.median(view.mse):.2g}"
        table.add_row(view.view.name, view.view.who, psnr, ssim, mse, labels)
    question, attack = inverted.options, inverted.attack
    searched = "" if attack.method == "analytic" else f", {attack.iterations} iterations"
    taken = f"{counted(question.examples, 'example')} each, {counted(question.steps, 'local step')}"
    facts = {
        "attack": f"{attack.method}{searched}, on {_model(inverted.target)}",
        "quality": "medians over the attacked examples",
        "clients": f"{', '.join(map(str, inverted.clients))}: {taken}",
    }
    return _with_facts(table, facts, inverted.target, out)


def property_table(properties: Properties, out: Path) -> Group:
    """Returns a table of the error of inferred label distributions, a line for each view.

    Args:
      properties: the results of the attack.
      out: the folder to which the results were written.
    """
    table = _view_table("view", "observer", "distance", "majority label")
    for guess in properties.estimates:
        distance, right = np.mean(guess.distance), np.mean(guess.majority)
        table.add_row(guess.view.name, guess.view.who, f"{distance:.3f}", f"{right:.0%} right")
    facts = {
        "attack": f"label shares from the last layer's bias, on {_model(properties.target)}",
        "clients": f"{len(properties.clients)}, trained as in the run",
        "distance": "total variation distance to the client's label shares, from 0 (exact) to 1",
    }
    return _with_facts(table, facts, properties.target, out)


def decibels(psnr: float) -> str:
    """Formats a PSNR in decibels; above 99 dB, infinity included, it is "exact"."""
    return "exact" if psnr > _EXACT or math.isinf(psnr) else f"{psnr:.1f} dB"


def _view_table(*columns: str) -> Table:
    """Returns an empty table with these columns, the first two for text."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for place, name in enumerate(columns):
        table.add_column(Text(name), justify="left" if place < 2 else "right", no_wrap=place != 1)
    return table


def _with_facts(table: Table, facts: dict[str, str], target: Subject, out: Path) -> Group:
    """Returns `table`, followed by rows: `facts`, those of `_meaning`, and the folder `out`."""
    return Group(table, "", rows({**facts, **_meaning(target), "out": str(out)}))


def _model(target: Subject) -> str:
    """Names the attacked model, with its number of trained rounds, or as new (untrained)."""
    name = target.config.names["model"]
    return f"the {name} model after {target.round} rounds" if target.round else f"a new {name}"


def _meaning(target: Subject) -> dict[str, str]:
    """Returns table rows on the meaning of ε and of clipping for an attack on one round.

    All runs have a note that this is a simulation; runs without privacy have no other row.
    """
    plan = target.setup.plan
    if not plan.mechanism.private:
        return {"note": SIMULATION}
    rounds, delta = plan.config.run.rounds, plan.config.privacy.delta
    return {
        "ε": f"over all {rounds} rounds {at_delta(delta)}; the attacker sees one round",
        "clip": "clipping only scales an update; noise and secure sums hide its content",
        "note": SIMULATION,
    }


_MOST = 8
"""Largest number of columns of a contact sheet."""


def contact_sheet(inverted: Inverted) -> bytes | None:
    """Returns a PNG of the attacked examples and reconstructions; None if they are no images."""
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
    """Draws images x `[B, *]` of `shape` (channels, height, width) into the axes `line`.

    `name` labels the row, and `values` are the smallest and the largest value of a pixel.
    """
    low, high = values
    for axes, example in zip(line, x, strict=False):
        pixels = example.reshape(shape).permute(1, 2, 0).clamp(low, high)
        pixels = (pixels - low) / (high - low)
        axes.imshow(pixels.squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1)
        axes.set(xticks=[], yticks=[])
    line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)


def _name_clients(line: list[Axes], inverted: Inverted) -> None:
    """Labels each column of images with its client."""
    each = inverted.options.examples
    for column, axes in enumerate(line):
        axes.set_title(f"client {inverted.clients[column // each]}", fontsize=8)
