"""What a grid's cells will guarantee together, before they run; and which of them will not run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from privfed.errors import PrivfedError
from privfed.grid.cell_charges import CellCharges, charged, planned, uncounted
from privfed.grid.engine import cells_folder, chosen, folder_of, result_of
from privfed.grid.grid import Cell, Grid, to_be_measured
from privfed.grid.joint_guarantee import Joint, joints
from privfed.grid.results import DONE, REFUSED, Files


@dataclass(frozen=True)
class Outlook:
    """`joint`, where every cell that is to run does so to its end; `excluded`: by cell, why not."""

    joint: tuple[Joint, ...]
    excluded: dict[str, str]

    def to_json(self, found: Sequence[Cell]) -> dict[str, Any]:
        """The object that `privfed experiment --dry-run --json` prints."""
        out = sum(1 for cell in found if cell.name in self.excluded)
        joint = [joint.to_json() for joint in self.joint]
        return {"cells": len(found), "excluded": out, "joint": joint}


def outlook(files: Files, grid: Grid, found: Sequence[Cell], retry: bool) -> Outlook:
    """Of the cells `found` and, where the grid tunes on these, of what is measured then.

    A cell that is to run counts with all its rounds, one that ended with what it was charged. Until
    tuning has chosen, what was charged counts for each of its options, and of what is still to be
    charged each event as often as for any of them.
    """
    excluded: dict[str, str] = {}
    charges: list[CellCharges] = []
    settled = chosen(files, grid, found, retry)
    measured = to_be_measured(files.grid, grid) if settled is None else [[c] for c in settled]
    slots = [*([cell] for cell in found), *measured]
    for options in slots:
        slot = "" if len(options) == 1 else f"tuned: {options[0].name}"
        for cell in options:
            charges += charged(cell, folder_of(files, cell), slot)
            try:
                if (result := result_of(files, cell, retry)) is None:
                    charges.append(planned(cell, slot))
                elif result["status"] != DONE:
                    excluded[cell.name] = f"{result['status']}: {result['reason']}"
            except PrivfedError as error:
                excluded[cell.name] = f"{REFUSED}: {error}"
    counted = {cell.name for options in slots for cell in options}
    return Outlook(joints(charges, uncounted(cells_folder(files), counted)), excluded)
