"""A run while it runs: its plan, then a bar on a terminal, or a line per evaluation elsewhere."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from privfed.plan.plan import Plan
from privfed.report.plan import plan_table
from privfed.run.forecast import Forecast
from privfed.run.outcome import RoundRecord
from privfed.words import ceiling, measure, number


class LiveProgress:
    """A bar with round, test accuracy, ε spent of the budget, and time left."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("round {task.completed}/{task.total}"),
            BarColumn(),
            TextColumn("{task.fields[measures]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task: TaskID | None = None
        self._budget: float | None = None

    def __enter__(self) -> LiveProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def before(self, plan: Plan, forecast: Forecast, path: Path, done: int) -> None:
        self._console.print(plan_table(plan, forecast, path), "")
        self._budget = plan.budget
        self._progress.start()
        self._task = self._progress.add_task(
            "", total=plan.config.run.rounds, completed=done, measures=""
        )

    def after_round(self, round: int) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=round)

    def aborted(self, round: int, reason: str) -> None:
        self._console.print(abort(round, reason), highlight=False)

    def after(self, record: RoundRecord) -> None:
        if self._task is not None:
            said = f"at {record.round}: {measures(record, self._budget)}"
            self._progress.update(self._task, measures=said)
        if record.warning:
            self._console.print(warned(record), highlight=False)


class PlainProgress:
    """One line per evaluation, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._budget: float | None = None
        self._rounds = 0

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, *_: object) -> None: ...

    def before(self, plan: Plan, forecast: Forecast, path: Path, done: int) -> None:
        self._console.print(plan_table(plan, forecast, path), "")
        self._budget, self._rounds = plan.budget, plan.config.run.rounds

    def after_round(self, round: int) -> None: ...

    def aborted(self, round: int, reason: str) -> None:
        self._console.print(abort(round, reason), highlight=False)

    def after(self, record: RoundRecord) -> None:
        line = f"round {record.round}/{self._rounds}  {measures(record, self._budget)}"
        self._console.print(line, highlight=False)
        if record.warning:
            self._console.print(warned(record), highlight=False)


def progress(console: Console) -> LiveProgress | PlainProgress:
    lively = console.is_terminal and not console.is_dumb_terminal
    return LiveProgress(console) if lively else PlainProgress(console)


def abort(round: int, reason: str) -> str:
    return f"round {round} aborted, charged and not repeated: {reason}"


def warned(record: RoundRecord) -> str:
    return f"round {record.round}: WARNING: {record.warning}"


def measures(record: RoundRecord, budget: float | None) -> str:
    name, value = next(iter(record.public.items()))
    of_budget = f" of {number(budget)}" if budget is not None and budget != math.inf else ""
    return f"{name} {measure(name, value)}  ε {ceiling(record.public['epsilon'])}{of_budget}"
