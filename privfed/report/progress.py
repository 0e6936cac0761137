"""A run while it runs: its plan, then a bar on a terminal, or a line per evaluation elsewhere."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from privfed.plan.plan import Plan
from privfed.report.plan import plan_table
from privfed.run.forecast import Forecast
from privfed.run.outcome import RoundRecord
from privfed.words import ceiling, measure, number


class PlainProgress:
    """One line per evaluation, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._budget: float | None = None
        self._rounds = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def before(self, plan: Plan, forecast: Forecast, path: Path, done: int) -> None:
        """Show what the run will guarantee and take."""
        self._console.print(plan_table(plan, forecast, path), "")
        self._budget, self._rounds = plan.budget, plan.config.run.rounds

    def after_round(self, round: int) -> None:
        """Rounds without an evaluation have no line."""

    def aborted(self, round: int, reason: str) -> None:
        """Say that a round came to nothing, and was charged."""
        self._console.print(abort_line(round, reason), highlight=False)

    def after(self, record: RoundRecord) -> None:
        """Show an evaluation, and what it warns of."""
        self._show(record.round, measures_line(record, self._budget))
        if record.warning:
            warning = f"round {record.round}: WARNING: {record.warning}"
            self._console.print(warning, highlight=False)

    def _show(self, round: int, measures: str) -> None:
        self._console.print(f"round {round}/{self._rounds}  {measures}", highlight=False)


class LiveProgress(PlainProgress):
    """A bar with round, test accuracy, ε spent of the budget, and time left."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._progress = Progress(
            TextColumn("round {task.completed}/{task.total}"),
            BarColumn(),
            TextColumn("{task.fields[measures]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task: TaskID | None = None

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def before(self, plan: Plan, forecast: Forecast, path: Path, done: int) -> None:
        """Show what the run will guarantee and take, and begin the bar after `done` rounds."""
        super().before(plan, forecast, path, done)
        self._progress.start()
        self._task = self._progress.add_task("", total=self._rounds, completed=done, measures="")

    def after_round(self, round: int) -> None:
        """Move the bar."""
        if self._task is not None:
            self._progress.update(self._task, completed=round)

    def _show(self, round: int, measures: str) -> None:
        if self._task is not None:
            self._progress.update(self._task, measures=f"at {round}: {measures}")


def progress(console: Console) -> PlainProgress:
    """A bar where the console can show one, else lines."""
    lively = console.is_terminal and not console.is_dumb_terminal
    return LiveProgress(console) if lively else PlainProgress(console)


def abort_line(round: int, reason: str) -> str:
    """What is said of a round whose secure sum was aborted."""
    return f"round {round} aborted, charged and not repeated: {reason}"


def measures_line(record: RoundRecord, budget: float | None) -> str:
    """The first measure of an evaluation, and ε spent of the budget."""
    name, value = next(iter(record.public.items()))
    of_budget = f" of {number(budget)}" if budget is not None and budget != math.inf else ""
    return f"{name} {measure(name, value)}  ε {ceiling(record.public['epsilon'])}{of_budget}"
