"""What a run's canaries would have noticed: their power, drawn over the truth."""

from __future__ import annotations

from privfed.auditing.canaries.power import Power
from privfed.report.page.blocks import Picture
from privfed.report.page.drawing import Axes, Line, lines_picture


def power_picture(power: Power) -> Picture | None:
    """The probabilities over what a run with less noise would truly have cost."""
    lines = [
        Line(
            f"doubted at {power.confidence:.0%}",
            [(fault.epsilon, fault.doubted) for fault in power.noticed],
        ),
        Line("refuted at p < 1e-6", [(fault.epsilon, fault.refuted) for fault in power.noticed]),
    ]
    title = f"How likely {power.canaries} canaries, at best, notice that ε is not what is claimed"
    axes = Axes("true ε", "probability", _percent, log=True, from_zero=True, top=1.0)
    return lines_picture("power", title, axes, lines)


def _percent(value: float | None) -> str:
    return "—" if value is None else f"{value:.0%}"
