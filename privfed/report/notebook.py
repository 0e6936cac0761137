"""Shows the progress of a run in a notebook, as a bar that is redrawn."""

from __future__ import annotations

import html
import importlib
import io
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from privfed.plan.plan import Plan
from privfed.report.progress import PlainProgress, abort_line, choosing_line, measures_line
from privfed.run.forecast import Forecast
from privfed.run.outcome import RoundRecord


def silent() -> Console:
    """Returns a console without output."""
    return Console(file=io.StringIO(), quiet=True)


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    return "ipykernel" in sys.modules and "IPython" in sys.modules and _kernel()


def _kernel() -> bool:
    from IPython import get_ipython

    return hasattr(get_ipython(), "kernel")


class NotebookProgress(PlainProgress):
    """Shows a bar in the output of a notebook's cell, with round, last metrics and spent ε."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._notebook: Any = None
        self._display: Any = None
        self._done, self._measures, self._notes = 0, "", list[str]()
        self._choosing = ""

    def choosing(self, key: str, number: int, count: int) -> None:
        """Shows that run `number` of the `count` simulated ones that choose `key` is running."""
        self._rounds, self._done = count, number
        self._choosing = choosing_line(key, count, number)
        self._begin()

    def before(self, plan: Plan, forecast: Forecast, path: Path, done: int) -> None:
        """Shows the bar, at `done` rounds that were completed before."""
        self._budget, self._rounds, self._done = plan.budget, plan.config.run.rounds, done
        if self._choosing:
            self._choosing, self._notes = "", [plan.config.auto]
        self._begin()

    def after_round(self, round: int) -> None:
        """Moves the bar to `round`; it is redrawn at most 200 times in a run."""
        self._done = round
        if round % max(self._rounds // 100, 1) == 0 or round == self._rounds:
            self._draw()

    def aborted(self, round: int, reason: str) -> None:
        """Shows that a round was aborted; it was charged."""
        self._notes.append(abort_line(round, reason))
        self._draw()

    def after(self, record: RoundRecord) -> None:
        """Shows the metrics of `record` in place of earlier ones, and adds its warning, if any."""
        self._measures = f"at {record.round}: {measures_line(record, self._budget)}"
        if record.warning:
            self._notes.append(f"round {record.round}: WARNING: {record.warning}")
        self._draw()

    def _begin(self) -> None:
        """Draws the bar; the first call also adds it to the output of the notebook's cell."""
        if self._display is None:
            self._notebook = notebook = importlib.import_module("IPython.display")
            self._display = notebook.display(notebook.HTML(self._drawn()), display_id=True)
        self._draw()

    def _draw(self) -> None:
        if self._display is not None:
            self._display.update(self._notebook.HTML(self._drawn()))

    def _drawn(self) -> str:
        notes = "".join(f"<br>{html.escape(note)}" for note in self._notes)
        state = self._choosing or f"round {self._done}/{self._rounds} {self._measures}"
        text = f"{html.escape(state)}{notes}"
        return f"<progress max={self._rounds} value={self._done}></progress> {text}"
