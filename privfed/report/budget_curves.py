"""A picture of what a run spent: epsilon over its rounds, and over delta."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from accounting.accountants import ACCOUNTANTS
from accounting.curves import Curve, over_delta, over_rounds
from accounting.durable import write_atomically
from accounting.ledger import Ledger
from privfed.errors import Refused
from privfed.grid.pictures.style import COLOURS, DASHES, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = (".svg", ".png", ".pdf")


def draw_curves(ledger: Ledger, path: Path) -> dict[str, Curve]:
    """Write the picture to `path`, and return what it shows. Raises `Refused`."""
    if path.suffix not in KINDS:
        raise Refused(f"--plot {path}: expected a name that ends in {', '.join(KINDS)}")
    delta = float(ledger.terms["delta"])
    events = [charge.event for charge in ledger.charges]
    curves = {
        "rounds": over_rounds(ledger.prior, events, delta),
        "delta": over_delta(ledger.spending, delta),
    }
    finite = [e for curve in curves.values() for _, by in curve for e in by.values() if _drawn(e)]
    if not finite:
        raise Refused(f"{ledger.path} spent nothing that can be drawn: no epsilon is finite")
    write_atomically(path, _picture(curves, delta, path.suffix[1:]))
    return curves


def _picture(curves: dict[str, Curve], delta: float, kind: str) -> bytes:
    import io

    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(STYLE):
        canvas, axes = pyplot.subplots(1, 2, figsize=(7.6, 3.0))
        try:
            _lines(axes[0], curves["rounds"])
            axes[0].set(xlabel="charged rounds", ylabel="ε", title=f"at δ = {delta:g}")
            _lines(axes[1], curves["delta"])
            axes[1].set(xlabel="δ", xscale="log", title="after all of them")
            axes[1].axvline(delta, color="#888888", linewidth=0.8)
            for each in axes:
                each.set_ylim(bottom=0)
            axes[0].legend()
            buffer = io.BytesIO()
            metadata = {"Date": None} if kind == "svg" else None
            canvas.savefig(buffer, format=kind, dpi=160, metadata=metadata)
        finally:
            pyplot.close(canvas)
    return buffer.getvalue()


def _lines(axes: Axes, curve: Curve) -> None:
    for name, colour, dash in zip(ACCOUNTANTS, COLOURS, DASHES, strict=False):
        shown = [(at, found) for at, by in curve if _drawn(found := by[name])]
        if shown:
            axes.plot(*zip(*shown, strict=True), color=colour, linestyle=dash, label=name)


def _drawn(epsilon: float | None) -> bool:
    return epsilon is not None and math.isfinite(epsilon)
