"""What people see of a model that was scored, or fitted to each client."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from privfed.report.outcome import beside_constant
from privfed.report.tables import (
    rows,
)

if TYPE_CHECKING:
    from privfed.trained.evaluate import Evaluation
    from privfed.trained.personalise import Personalised


def evaluation_table(found: Evaluation, predictions: Path | None) -> Table:
    pairs = {name: beside_constant(name, found.measures, found.constant) for name in found.measures}
    pairs["examples"] = f"{found.examples}: {found.data}"
    pairs["model"] = f"{found.path}, after round {found.round}"
    if found.note:
        pairs["note"] = found.note
    if predictions:
        pairs["predictions"] = str(predictions)
    return rows(pairs)


def personal_table(found: Personalised) -> Table:
    """What fine-tuning is worth to each client."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in (f"{found.measure} over {found.clients} clients", "before", "after"):
        table.add_column(name)
    for part in found.before:
        shown = (f"{side[part]:.4f}" for side in (found.before, found.after))
        table.add_row(part.replace("_", " "), *shown)
    table.add_row("improved", "", f"{100 * found.improved:.0f}% of clients")
    for title, line in zip(("note", ""), textwrap.wrap(found.note, 60), strict=False):
        table.add_row(title, "", line)
    return table
