"""Where the cells of a grid lie, and how each of them ended.

A cell's folder is named by its identity and holds its run directory and, once it ended, its result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accounting import regular
from accounting.documents import from_json
from privfed.grid.cells import Cell
from privfed.grid.results import DONE, FAILED, REFUSED, Files
from privfed.version import __version__

STOPPED, WAITING = "stopped", "waiting"
"""A cell that has not ended: the machine is in trouble, or another process is at it."""
Result = dict[str, Any]
"""How a cell ended: its "status", and its run's "outcome" or the "reason" why there is none."""


def cells_folder(files: Files) -> Path:
    """The folder that holds a folder for each cell."""
    return files.folder / "cells"


def folder_of(files: Files, cell: Cell) -> Path:
    """The folder of one cell."""
    return cells_folder(files) / cell.name


def result_of(files: Files, cell: Cell, retry: bool) -> Result | None:
    """How a cell ended; None where it has still to run, or to run again (`retry`)."""
    if cell.config is None:
        return {"status": REFUSED, "reason": cell.refusal, "version": __version__}
    path = folder_of(files, cell) / "result.json"
    try:
        result = from_json(regular.read_text(path))
    except (OSError, ValueError):
        return None
    if not isinstance(result, dict) or result.get("status") not in (DONE, REFUSED, FAILED):
        return None
    if result["status"] == DONE:
        return result if isinstance(result.get("outcome"), dict) else None
    return None if retry else result
