"""An experiment as people see it: cells before it runs, progress, and how it ended."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from privfed.grid.cells import Cell
from privfed.grid.engine import Experiment
from privfed.grid.grid import Grid
from privfed.grid.joint_guarantee import Group, Joint
from privfed.grid.pictures.figures import text
from privfed.grid.planned_guarantee import Outlook
from privfed.grid.results import DONE, FAILED, REFUSED
from privfed.report.tables import rows
from privfed.words import ceiling, duration

_SHOWN = 6
"""Populations whose joint ε is printed; all of them are in the table and the JSON."""


def cells_table(found: Sequence[Cell], grid: Grid, excluded: Mapping[str, str]) -> Table:
    """Every combination of values once, with the number of the reason why it does not run."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for key in [*grid.keys, *grid.tuned_keys]:
        table.add_column(key, overflow="fold")
    table.add_column("", overflow="fold")
    seeds = len(grid.tune.seeds if grid.tune else grid.seeds)
    numbers = _numbered(excluded)
    for start in range(0, len(found), seeds):
        names = [cell.name for cell in found[start : start + seeds] if cell.name in excluded]
        notes = list(dict.fromkeys(f"[{numbers[excluded[name]]}]" for name in names))
        shown = (found[start].values.get(key, "") for key in [*grid.keys, *grid.tuned_keys])
        table.add_row(*(Text(text(value)) for value in shown), Text(" ".join(notes), style="red"))
    return table


def excluded_table(excluded: Mapping[str, str]) -> Table:
    """Each reason once, by its number."""
    return rows({f"[{n}]": why for why, n in _numbered(excluded).items()})


def _numbered(excluded: Mapping[str, str]) -> dict[str, int]:
    return {why: n for n, why in enumerate(dict.fromkeys(excluded.values()), start=1)}


def outlook_table(ahead: Outlook) -> Table:
    """What all cells will have spent together, of whom they are about."""
    return rows(_joint_row(ahead.joint))


def outcome_table(outcome: Experiment) -> Table:
    """How all cells ended, and what they guarantee together."""
    counts = outcome.counts
    kept = {name: counts[name] for name in (DONE, REFUSED, FAILED, "waiting") if counts[name]}
    bad = counts[REFUSED] + counts[FAILED]
    pairs = {
        "cells": ", ".join(f"{count} {name}" for name, count in kept.items())
        + (" (--retry repeats what was refused or failed)" if bad else ""),
        **_joint_row(outcome.joint),
        "table": f"{outcome.files.table} (and .parquet)",
        "summary": str(outcome.files.summary),
    }
    return rows(pairs)


def _joint_row(found: Sequence[Joint]) -> dict[str, str]:
    """Populations of which the same is stated are named together."""
    stated: dict[str, list[str]] = {}
    for joint in found:
        stated.setdefault("\n".join(_stated(joint)), []).append(joint.about)
    if not stated:
        return {}
    if len(found) == 1:
        return {"joint ε": next(iter(stated))}
    lines = [f"{lines}\n({_listed(names)})" for lines, names in stated.items()]
    hidden = sum(map(len, [*stated.values()][_SHOWN:]))
    more = [f"and {_plural(hidden, 'population')} more, in the table and --json"] if hidden else []
    return {"joint ε": "\n".join([*lines[:_SHOWN], *more])}


def _listed(names: Sequence[str]) -> str:
    """Populations by name; those that differ in the seed only, together."""
    seeds: dict[str, list[str]] = {}
    for name in names:
        head, seed, number = name.rpartition(", seed ")
        seeds.setdefault(head if seed else name, []).extend([number] if seed else [])
    shown = [
        f"{head}, {'seed' if len(of) == 1 else 'each of the seeds'} {', '.join(of)}" if of else head
        for head, of in seeds.items()
    ]
    more = f"; and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return "; ".join(shown[:_SHOWN]) + more


def _stated(joint: Joint) -> Iterator[str]:
    """What the cells over one population guarantee together, and why not more."""
    cells, apart = _cells(len(joint.cells)), ""
    if joint.void:
        apart = "the others: "
        yield f"∞ over {cells}: {'; '.join(joint.void)}"
    elif len(joint.groups) > 1:
        yield f"no one ε is over {cells}: they differ in {', '.join(joint.differ)}"
    for group in joint.groups:
        if group.bound.epsilon < math.inf:
            yield apart + _of_group(group, joint)
    if joint.examples:
        bound = joint.examples
        why = f": {bound.missing}" if bound.missing else ""
        yield f"{ceiling(bound.epsilon)} at δ = {bound.delta:g} for one example of a silo{why}"
    yield from joint.notes


def _of_group(group: Group, joint: Joint) -> str:
    bound, many = group.bound, len(group.cells)
    over = _cells(many) if group.cells == joint.cells else _plural(many, "cell")
    most = "at most " if joint.at_most else ""
    against = f", against the {bound.against}" if bound.against else ""
    nominal = " (nominal)" if joint.nominal else ""
    return (
        f"{most}{ceiling(bound.epsilon)} at δ = {bound.delta:g} for one {bound.unit} over {over}, "
        f"{bound.relation}{against}{nominal}"
    )


def _cells(count: int) -> str:
    return {1: "one cell", 2: "both cells"}.get(count, f"all {count} cells")


class ExperimentProgress:
    """Done, running, failed, time left: a bar on a terminal, else a line per cell."""

    def __init__(self, console: Console, keys: Sequence[str]) -> None:
        self._console = console
        self._keys = keys
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
        self._total, self._left, self._began = total, total - done, time.monotonic()
        before = f", {done} of them before" if done else ""
        said = f"{_plural(total, 'cell')}{before}, in {_plural(processes, 'process', 'es')}"
        self._console.print(said, highlight=False)
        if self._lively and self._left:
            self._progress.start()
            self._task = self._progress.add_task("", total=total, completed=done, counts="")

    def started(self, cell: Cell) -> None:
        self._running += 1
        self._show()

    def ended(self, cell: Cell, result: dict[str, Any]) -> None:
        self._running -= 1
        self._ended[result["status"]] += 1
        self._left -= 1
        if not self._lively:
            done = self._total - self._left
            self._console.print(
                f"{done}/{self._total}  {self._said(cell, result)}",
                soft_wrap=True,
                highlight=False,
                markup=False,
            )
        elif result["status"] != DONE:
            self._console.print(Text(self._said(cell, result), style="red"))
        if self._task is not None:
            self._progress.advance(self._task)
        self._show()

    def _said(self, cell: Cell, result: dict[str, Any]) -> str:
        short = Counter(_short(key) for key in cell.values)
        where = ", ".join(
            f"{key if short[_short(key)] > 1 else _short(key)} {text(value)}"
            for key, value in cell.values.items()
        )
        name = f"{where}, seed {cell.seed}" if where else f"seed {cell.seed}"
        if result["status"] == DONE:
            measure, value = next(iter(result["outcome"].items()))
            return f"{name}: {measure} {value:.4g} in {duration(result['seconds'])}"
        return f"{name}: {result['status']}: {result['reason']}"

    def _show(self) -> None:
        if self._task is None:
            return
        ended = sum(self._ended.values())
        left = math.inf if not ended else (time.monotonic() - self._began) / ended * self._left
        shown = "" if left == math.inf else f", {duration(left)} left"
        bad = self._ended[FAILED] + self._ended[REFUSED]
        counts = f"{self._running} running, {bad} failed{shown}"
        self._progress.update(self._task, counts=counts)


def _short(key: str) -> str:
    return key.rpartition(".")[2]


def _plural(count: int, name: str, ending: str = "s") -> str:
    return f"{count} {name}{ending if count != 1 else ''}"
