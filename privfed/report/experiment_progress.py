"""An experiment while it runs: a bar on a terminal, else a line per cell."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from privfed.grid.cells import Cell
from privfed.grid.pictures.figures import text
from privfed.grid.results import DONE, FAILED, REFUSED
from privfed.report.tables import counted
from privfed.words import duration


class ExperimentProgress:
    """How many cells are done, running and failed, and the time left."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lively = console.is_terminal and not console.is_dumb_terminal
        self._progress = Progress(
            TextColumn("{task.completed}/{task.total} cells"),
            BarColumn(),
            TextColumn("{task.fields[counts]}"),
            console=console,
        )
        self._task: TaskID | None = None
        self._ended: Counter[str] = Counter()
        self._running = 0
        self._total = self._left = 0
        self._began = 0.0

    def __enter__(self) -> ExperimentProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, total: int, done: int, processes: int) -> None:
        """Say how many cells there are, `done` of them by earlier calls."""
        self._total, self._left, self._began = total, total - done, time.monotonic()
        before = f", {done} of them before" if done else ""
        cells = f"{counted(total, 'cell')}{before}, in {counted(processes, 'process', 'es')}"
        self._console.print(cells, highlight=False)
        if self._lively and self._left:
            self._progress.start()
            self._task = self._progress.add_task("", total=total, completed=done, counts="")

    def started(self, cell: Cell) -> None:
        """Count a cell that began."""
        self._running += 1
        self._show()

    def ended(self, cell: Cell, result: dict[str, Any]) -> None:
        """Count a cell that ended, and say how: beside a bar only where it came to nothing."""
        self._running -= 1
        self._ended[result["status"]] += 1
        self._left -= 1
        line = _result_line(cell, result)
        if not self._lively:
            done = f"{self._total - self._left}/{self._total}"
            self._console.print(f"{done}  {line}", soft_wrap=True, highlight=False, markup=False)
        elif result["status"] != DONE:
            self._console.print(Text(line, style="red"))
        if self._task is not None:
            self._progress.advance(self._task)
        self._show()

    def _show(self) -> None:
        """Write the counts beside the bar."""
        if self._task is None:
            return
        ended = sum(self._ended.values())
        left = math.inf if not ended else (time.monotonic() - self._began) / ended * self._left
        shown = "" if left == math.inf else f", {duration(left)} left"
        bad = self._ended[FAILED] + self._ended[REFUSED]
        counts = f"{self._running} running, {bad} failed{shown}"
        self._progress.update(self._task, counts=counts)


def _result_line(cell: Cell, result: dict[str, Any]) -> str:
    """A cell by its values and seed, and its first measure, or why it has none."""
    short = Counter(_last_part(key) for key in cell.values)
    values = ", ".join(
        f"{key if short[_last_part(key)] > 1 else _last_part(key)} {text(value)}"
        for key, value in cell.values.items()
    )
    name = f"{values}, seed {cell.seed}" if values else f"seed {cell.seed}"
    if result["status"] == DONE:
        measure, value = next(iter(result["outcome"].items()))
        return f"{name}: {measure} {value:.4g} in {duration(result['seconds'])}"
    return f"{name}: {result['status']}: {result['reason']}"


def _last_part(key: str) -> str:
    """`key` without its section."""
    return key.rpartition(".")[2]
