"""A picture of what a run spent: epsilon over its rounds, and over delta."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.axes import Axes

from accounting.accountants import ACCOUNTANTS
from accounting.curves import Curve, over_delta, over_rounds, spent_by
from accounting.durable import write_atomically
from accounting.ledger import Ledger
from privfed.errors import Refused
from privfed.grid.pictures.style import COLOURS, DASHES
from privfed.report.canvas import canvas, image

KINDS = (".svg", ".png", ".pdf")


def draw_curves(ledger: Ledger, path: Path) -> dict[str, Curve]:
    """Write the picture to `path`, and return what it shows. Raises `Refused`."""
    if path.suffix not in KINDS:
        raise Refused(f"--plot {path}: expected a name that ends in {', '.join(KINDS)}")
    delta = float(ledger.terms["delta"])
    curves = {
        "rounds": over_rounds(ledger.prior, spent_by(ledger), delta),
        "delta": over_delta(ledger.spending, delta),
    }
    finite = [e for curve in curves.values() for _, by in curve for e in by.values() if _finite(e)]
    if not finite:
        raise Refused(f"{ledger.path} spent nothing that can be drawn: no epsilon is finite")
    write_atomically(path, _picture(curves, delta, path.suffix[1:]))
    return curves


def _picture(curves: dict[str, Curve], delta: float, kind: str) -> bytes:
    """Two panels beside each other, as a file of `kind`."""
    with canvas(1, 2, (7.6, 3.0)) as (figure, ((by_round, by_delta),)):
        _draw_lines(by_round, curves["rounds"])
        by_round.set(xlabel="charged rounds", ylabel="ε", title=f"at δ = {delta:g}")
        _draw_lines(by_delta, curves["delta"])
        by_delta.set(xlabel="δ", xscale="log", title="after all of them")
        by_delta.axvline(delta, color="#888888", linewidth=0.8)
        by_round.set_ylim(bottom=0)
        by_delta.set_ylim(bottom=0)
        by_round.legend()
        return image(figure, kind, 160, {"Date": None} if kind == "svg" else None)


def _draw_lines(axes: Axes, curve: Curve) -> None:
    """One line for each accountant, where its epsilon is finite."""
    for name, colour, dash in zip(ACCOUNTANTS, COLOURS, DASHES, strict=False):
        points = [(at, by[name]) for at, by in curve if _finite(by[name])]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, linestyle=dash, label=name)


def _finite(epsilon: float | None) -> bool:
    return epsilon is not None and math.isfinite(epsilon)
