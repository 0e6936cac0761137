"""What people see of an attack: who saw what, and what it told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from privfed.leakage.inversion import Inverted
from privfed.leakage.properties import Properties
from privfed.leakage.subject import SIMULATION, Subject
from privfed.report.contact_sheet import decibels
from privfed.report.tables import rows


def inversion_table(found: Inverted, out: Path) -> Group:
    """Quality by view, and what was attacked how."""
    table = _views("what is seen", "by whom", "PSNR", "SSIM", "MSE", "labels found")
    for each in found.views:
        alike = f"{np.median(each.ssim):.2f}" if each.ssim else "—"
        labels = "—" if each.labels is None else f"{each.labels:.0%}"
        quality = decibels(float(np.median(each.psnr)))
        error = f"{np.median(each.mse):.2g}"
        table.add_row(each.view.name, each.view.who, quality, alike, error, labels)
    options, attack = found.options, found.attack
    searched = "" if attack.method == "analytic" else f", {attack.iterations} iterations"
    taken = f"{_count(options.examples, 'example')} each, {_count(options.steps, 'local step')}"
    return Group(
        table,
        "",
        rows(
            {
                "attack": f"{attack.method}{searched}, on {_model(found.target)}",
                "quality": "medians over the attacked examples",
                "clients": f"{', '.join(map(str, found.clients))}: {taken}",
                **_meaning(found.target),
                "out": str(out),
            }
        ),
    )


def property_table(found: Properties, out: Path) -> Group:
    """How far the label distributions are off, by view."""
    table = _views("what is seen", "by whom", "distance", "majority label")
    for each in found.estimates:
        distance, right = np.mean(each.distance), np.mean(each.majority)
        table.add_row(each.view.name, each.view.who, f"{distance:.3f}", f"{right:.0%} right")
    return Group(
        table,
        "",
        rows(
            {
                "attack": f"label shares from the last layer's bias, on {_model(found.target)}",
                "clients": f"{len(found.clients)}, trained as in the run",
                "distance": "total variation to the client's own labels: 0 is known, 1 all wrong",
                **_meaning(found.target),
                "out": str(out),
            }
        ),
    )


def _views(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for place, name in enumerate(columns):
        table.add_column(Text(name), justify="left" if place < 2 else "right", no_wrap=place != 1)
    return table


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _model(target: Subject) -> str:
    name = target.config.names["model"]
    return f"the {name} model after {target.round} rounds" if target.round else f"a new {name}"


def _meaning(target: Subject) -> dict[str, str]:
    plan = target.setup.plan
    meaning = {"note": SIMULATION}
    if plan.mechanism.private:
        rounds, delta = plan.config.run.rounds, plan.config.privacy.delta
        meaning = {
            "ε": f"of all {rounds} rounds at δ = {delta:g}; what is seen is one of them",
            "clip": "scales an update and hides nothing by itself; noise and sums do",
            **meaning,
        }
    return meaning
