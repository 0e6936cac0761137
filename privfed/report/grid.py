"""The tables and the progress of a grid of runs (an experiment or a tuning) on the terminal."""

from __future__ import annotations

import math
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from accounting.statement import NOMINAL, each_epsilon
from privfed.core.text import ceiling, duration, number
from privfed.core.text import measure as measured
from privfed.grid.cells import Cell
from privfed.grid.engine import Experiment
from privfed.grid.grid import Grid
from privfed.grid.joint_guarantee import Group, Joint
from privfed.grid.pictures.figures import text
from privfed.grid.planned_guarantee import Outlook
from privfed.grid.private_tuning import Tuned
from privfed.grid.results import DONE, FAILED, REFUSED
from privfed.grid.tuning_proposal import Proposal, score_of
from privfed.privacy.shared_noise import PARTY_WORDS
from privfed.report.plan_privacy import nominal_rows
from privfed.report.tables import counted, rows, start_row


def proposal_table(proposal: Proposal, processes: int) -> Table:
    """Returns a table of the plan of a private tuning: candidate runs, total ε, and time.

    Args:
      proposal: the plan.
      processes: number of candidates that run in parallel; the stated time is divided by it.
    """
    bound, single = proposal.guarantee, proposal.single
    ratio = bound.epsilon / single.epsilon if single.epsilon else math.inf
    seconds = proposal.seconds * proposal.repetitions.mean / processes
    better = "lower" if proposal.lower else "higher"
    return rows(
        {
            "chosen among": counted(len(proposal.cells), "combination"),
            "candidates": (
                f"{proposal.repetitions.mean:.3g} on average, a secret number; each combination is "
                f"tried with a probability of {proposal.tried:.0%}"
            ),
            "score": f"{proposal.measure} ({better} is better)",
            "ε": f"{bound.rows()['ε']}, in total{NOMINAL * bool(proposal.plan.simulation)}",
            "one run": (
                f"ε = {ceiling(single.epsilon)} alone at this noise; the choice costs {ratio:.2f} "
                "times as much"
            ),
            "accountants": each_epsilon(bound.by_accountant),
            "unit": f"one {bound.unit}, {bound.relation}",
            "noise": f"multiplier {ceiling(proposal.plan.noise_multiplier)}",
            **nominal_rows(proposal.plan),
            "time": f"about {duration(seconds)} on {counted(processes, 'process', 'es')}",
        }
    )


def tuned_table(tuned: Tuned) -> Table:
    """Returns a table of the run that a private tuning released, and of the tuning's guarantee."""
    bound, name = tuned.guarantee, tuned.proposal.measure
    nominal = NOMINAL * bool(tuned.proposal.plan.simulation)
    combination = tuned.outcome["combination"].items()
    return rows(
        {
            "best": str(tuned.path),
            "chosen": ", ".join(f"{key} = {text(value)}" for key, value in combination),
            name: measured(name, score_of(tuned.outcome, name) or 0.0),
            "ε": f"{bound.rows()['ε']}, choice included{nominal}",
            "noise": f"multiplier {number(tuned.outcome['noise_multiplier'])}",
            "ledger": f"{tuned.ledger} (one charge)",
            "report": f"privfed report {shlex.quote(str(tuned.path))}",
            **start_row(bound, tuned.proposal.config.starts_from),
            **nominal_rows(tuned.proposal.plan),
        }
    )


class ExperimentProgress:
    """Shows, during an experiment, the numbers of completed, running and failed cells.

    A cell is one run of the grid. On a terminal there is a bar, with the time left; elsewhere a
    line is printed for each cell that ends.
    """

    def __init__(
        self,
        console: Console,
        on_end: Callable[[Cell, dict[str, Any]], object] = lambda cell, result: None,
    ) -> None:
        self._console = console
        self._on_end = on_end
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
        """Prints the numbers of all cells, of those that ended before (`done`), and processes."""
        self._total, self._left, self._began = total, total - done, time.monotonic()
        before = f", {done} of them ended before" if done else ""
        cells = f"{counted(total, 'cell')}{before}, in {counted(processes, 'process', 'es')}"
        self._console.print(cells, highlight=False)
        if self._lively and self._left:
            self._progress.start()
            self._task = self._progress.add_task("", total=total, completed=done, counts="")

    def started(self, cell: Cell) -> None:
        """Counts a started cell."""
        self._running += 1
        self._show()

    def ended(self, cell: Cell, result: dict[str, Any]) -> None:
        """Counts an ended cell, and prints its result; with a bar, only if refused or failed."""
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
        self._on_end(cell, result)

    def _show(self) -> None:
        if self._task is None:
            return
        ended = sum(self._ended.values())
        left = math.inf if not ended else (time.monotonic() - self._began) / ended * self._left
        shown = "" if left == math.inf else f", {duration(left)} left"
        bad = self._ended[FAILED] + self._ended[REFUSED]
        counts = f"{self._running} running, {bad} failed{shown}"
        self._progress.update(self._task, counts=counts)


def _result_line(cell: Cell, result: dict[str, Any]) -> str:
    """Formats a cell's values and seed, with its first metric and time if it is done.

    Otherwise, its status and the reason follow.
    """
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
    return key.rpartition(".")[2]


_SHOWN = 6
"""Largest number of populations that are printed; the table and the JSON have all of them."""


def cells_table(cells: Sequence[Cell], grid: Grid, excluded: Mapping[str, str]) -> Table:
    """Returns a table of the grid's combinations of values, a line for all seeds of each.

    A combination with cells that will not run shows the numbers of the reasons in `excluded_table`.

    Args:
      cells: all cells; those of one combination, which differ in the seed, are adjacent.
      grid: the grid.
      excluded: the reason why a cell will not run, by name of the cell.
    """
    table = Table(box=None, padding=(0, 2, 0, 0))
    keys = [*grid.keys, *grid.tuned_keys]
    for key in (*keys, ""):
        table.add_column(key, overflow="fold")
    seeds = len(grid.tune.seeds if grid.tune else grid.seeds)
    numbers = _numbered(excluded)
    for start in range(0, len(cells), seeds):
        names = [cell.name for cell in cells[start : start + seeds] if cell.name in excluded]
        notes = list(dict.fromkeys(f"[{numbers[excluded[name]]}]" for name in names))
        values = (cells[start].values.get(key, "") for key in keys)
        table.add_row(*(Text(text(value)) for value in values), Text(" ".join(notes), style="red"))
    return table


def excluded_table(excluded: Mapping[str, str]) -> Table:
    """Returns a table of the numbered reasons why cells will not run.

    `excluded` has the reason by name of the cell.
    """
    return rows({f"[{n}]": why for why, n in _numbered(excluded).items()})


def _numbered(excluded: Mapping[str, str]) -> dict[str, int]:
    """Returns a number, from 1, for each distinct reason why cells will not run."""
    return {why: n for n, why in enumerate(dict.fromkeys(excluded.values()), start=1)}


def outlook_table(ahead: Outlook) -> Table:
    """Returns a table of the joint ε for each population, if all planned cells complete."""
    return rows(_joint_row(ahead.joint))


def experiment_table(outcome: Experiment) -> Table:
    """Returns a table of the numbers of cells by status, the joint guarantee, and the files."""
    counts = outcome.counts
    ends = (DONE, REFUSED, FAILED, "waiting")
    bad = counts[REFUSED] + counts[FAILED]
    pairs = {
        "cells": ", ".join(f"{counts[end]} {end}" for end in ends if counts[end])
        + (" (--retry repeats refused and failed cells)" if bad else ""),
        **_joint_row(outcome.joint),
        "table": f"{outcome.files.table} (and .parquet)",
        "summary": str(outcome.files.summary),
    }
    return rows(pairs)


def _joint_row(joints: Sequence[Joint]) -> dict[str, str]:
    """Returns a table row on the joint guarantee for each population; equal ones are merged."""
    populations: dict[str, list[str]] = {}
    for joint in joints:
        populations.setdefault("\n".join(_joint_lines(joint)), []).append(joint.about)
    if not populations:
        return {}
    if len(joints) == 1:
        return {"joint ε": next(iter(populations))}
    lines = [f"{lines}\n({_listed(names)})" for lines, names in populations.items()]
    hidden = sum(map(len, [*populations.values()][_SHOWN:]))
    more = f"and {counted(hidden, 'population')} more, in the table and --json"
    return {"joint ε": "\n".join([*lines[:_SHOWN], *([more] if hidden else [])])}


def _listed(names: Sequence[str]) -> str:
    """Joins names of populations to one text; names that differ only in a final seed are merged.

    At most `_SHOWN` merged names are listed, followed by the number of the others.
    """
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


def _joint_lines(joint: Joint) -> Iterator[str]:
    """Yields the guarantee of each group of cells over one population, and notes on its limits."""
    cells, apart = _all_cells(len(joint.cells)), ""
    if joint.void:
        apart = "the others: "
        yield f"∞ over {cells}: {'; '.join(joint.void)}"
    elif len(joint.groups) > 1:
        yield f"there is no single ε over {cells}, which differ in {', '.join(joint.differ)}"
    for group in joint.groups:
        if group.bound.epsilon < math.inf:
            yield apart + _group_line(group, joint)
    if joint.examples:
        bound = joint.examples
        why = f": {bound.missing}" if bound.missing else ""
        yield f"{bound.rows()['ε']} for one example of a silo{why}"
    yield from joint.notes


def _group_line(group: Group, joint: Joint) -> str:
    """Formats the guarantee of `group`, which is one of the groups of cells in `joint`."""
    bound, count = group.bound, len(group.cells)
    over = _all_cells(count) if group.cells == joint.cells else counted(count, "cell")
    most = "at most " if joint.at_most else ""
    against = f", against {PARTY_WORDS[bound.against]}" if bound.against else ""
    return (
        f"{most}{bound.rows()['ε']} for one {bound.unit} over {over}, "
        f"{bound.relation}{against}{NOMINAL * joint.nominal}"
    )


def _all_cells(count: int) -> str:
    """Returns "one cell", "both cells" or "all N cells", for `count` cells."""
    return {1: "one cell", 2: "both cells"}.get(count, f"all {count} cells")
