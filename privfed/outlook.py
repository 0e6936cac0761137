"""What a grid's cells will guarantee together, before they run; and which of them will not run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from privfed.errors import PrivfedError
from privfed.experiment import folder_of, result_of
from privfed.grid import Cell, Grid, to_be_measured
from privfed.joint import Joint, joints
from privfed.results import REFUSED, Files
from privfed.shares import Share, charged, planned


@dataclass(frozen=True)
class Outlook:
    """`joint`, where every cell that is to run does so to its end; `refused`: by cell, why not."""

    joint: tuple[Joint, ...]
    refused: dict[str, str]

    def to_json(self, found: Sequence[Cell]) -> dict[str, Any]:
        """The object that `privfed experiment --dry-run --json` prints."""
        refused = sum(1 for cell in found if cell.name in self.refused)
        joint = [joint.to_json() for joint in self.joint]
        return {"cells": len(found), REFUSED: refused, "joint": joint}


def outlook(files: Files, grid: Grid, found: Sequence[Cell], retry: bool) -> Outlook:
    """Of the cells `found` and, where the grid tunes on these, of what is measured then.

    A cell that is to run counts with all its rounds, one that ended with what it was charged. What
    tuning will choose is not known: of its options each event counts as often as in any of them.
    """
    refused = {cell.name: cell.refusal for cell in found if cell.refusal}
    shares: list[Share] = []
    for options in [*([cell] for cell in found), *(to_be_measured(files.grid, grid))]:
        begun = [cell for cell in options if folder_of(files, cell).exists()]
        slot = "" if begun or len(options) == 1 else f"tuned: {options[0].name}"
        for cell in begun or options:
            shares += charged(cell, folder_of(files, cell), slot)
            if cell.config is None or result_of(files, cell, retry) is not None:
                continue
            try:
                shares.append(planned(cell, slot))
            except PrivfedError as error:
                refused[cell.name] = str(error)
    return Outlook(joints(shares), refused)
