"""How long a grid will take, measured on a few of its cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from privfed.errors import Refused
from privfed.grid.cells import Cell, grid_points
from privfed.grid.grid import Grid
from privfed.run.check import check
from privfed.words import duration

_SAMPLED = 6
"""Cells that are measured."""
_OVERHEAD = 0.5
"""Seconds a cell takes beside training: loading, calibrating, the ledger."""


def estimate(path: Path, planned: Sequence[Cell], grid: Grid, processes: int) -> str:
    """How long the grid takes, measured on a few of its cells, evenly chosen. Writes nothing."""
    runnable = [cell for cell in planned if cell.config is not None]
    step = max(len(runnable) // _SAMPLED, 1)
    seconds: list[float] = []
    refused: list[str] = []
    for cell in runnable[step // 2 :: step][:_SAMPLED]:
        assert cell.config is not None
        try:
            seconds.append(check(cell.config).forecast.seconds + _OVERHEAD)
        except Refused as refusal:
            refused.append(str(refusal))
    if not seconds:
        return f"{len(planned)} cells; none of {len(refused)} tried would run: {refused[0]}"
    measured = len(grid_points(path, grid)) * len(grid.seeds) if grid.tune else 0
    total = sum(seconds) / len(seconds) * (len(runnable) + measured) / processes
    tuning = (
        f"{len(planned)} cells to tune on, then {measured}"
        if grid.tune
        else f"{len(planned)} cells"
    )
    where = "1 process" if processes == 1 else f"{processes} processes"
    return (
        f"{tuning}, {len(grid.seeds)} seeds included: about {duration(total)} on {where} "
        f"(measured on {len(seconds)} of them)"
    )
