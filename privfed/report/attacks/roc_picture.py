"""ROCs of membership attacks, with what epsilon allows: a picture, and the files of an attack."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from attacks.privacy.tradeoff import tpr_bound
from privfed.grid.pictures.style import COLOURS, DASHES
from privfed.json_text import dump
from privfed.leakage.membership import Exposure
from privfed.report.attacks.membership import ATTACK_NAMES, claim, exposure_json
from privfed.report.canvas import canvas, image
from privfed.words import ceiling

_LEAST = 1e-4
"""The value at which both axes begin."""


def exposure_files(exposure: Exposure) -> dict[str, bytes]:
    """The picture and the numbers, by the names of their files."""
    pictures = {f"roc.{kind}": roc_picture({"": exposure}, kind) for kind in ("svg", "png")}
    numbers = (dump(exposure_json(exposure), indent=1) + "\n").encode()
    return {**pictures, "membership.json": numbers}


def roc_picture(exposures: Mapping[str, Exposure], kind: str) -> bytes:
    """ROCs on logarithmic axes, one panel each by title, with chance and what ε allows."""
    size = (0.6 + 3.4 * len(exposures), 3.6)
    with canvas(1, len(exposures), size, sharey=True) as (figure, (panels,)):
        for axes, (title, exposure) in zip(panels, exposures.items(), strict=True):
            _draw_bound(axes, exposure)
            _draw_curves(axes, exposure)
            axes.set(xscale="log", yscale="log", xlim=(_LEAST, 1), ylim=(_LEAST, 1.05), title=title)
            axes.set_xlabel("false-positive rate")
            bounded = claim(exposure)[0] < math.inf
            axes.legend(fontsize=7, loc="lower right" if bounded else "best")
        panels[0].set_ylabel("true-positive rate")
        return image(figure, kind, 160, {"Date": None} if kind == "svg" else {"Software": None})


def _draw_bound(axes: Axes, exposure: Exposure) -> None:
    """Chance, and the largest true-positive rates that epsilon allows."""
    epsilon, delta, _ = claim(exposure)
    fpr = np.geomspace(_LEAST, 1, 400)
    axes.plot(fpr, fpr, color="#888888", linewidth=0.8, label="chance")
    if epsilon < math.inf:
        bound, label = tpr_bound(fpr, epsilon, delta), f"at most, by ε = {ceiling(epsilon)}"
        axes.plot(fpr, bound, color="black", linestyle=":", linewidth=1.2, label=label)
        axes.fill_between(fpr, bound, 1, color="#888888", alpha=0.15, linewidth=0)


def _draw_curves(axes: Axes, exposure: Exposure) -> None:
    """Each attack's rates, from the smallest that its number of non-members can tell."""
    grid = np.geomspace(_LEAST, 1, 400)
    styles = zip(exposure.curves.items(), COLOURS, DASHES, strict=False)
    for (name, curve), colour, dash in styles:
        fpr = grid[grid >= 1 / curve.nonmembers]  # fewer false positives were none
        tpr = curve.tpr[np.searchsorted(curve.fpr, fpr, side="right") - 1]
        axes.plot(
            fpr,
            np.maximum(tpr, _LEAST / 10),
            drawstyle="steps-post",
            color=colour,
            linestyle=dash,
            linewidth=1.4,
            label=f"{ATTACK_NAMES[name]} (AUC {curve.auc:.2f})",
        )
