"""An experiment as people see it: its cells before it runs, and how it ended."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from privfed.grid.cells import Cell
from privfed.grid.engine import Experiment
from privfed.grid.grid import Grid
from privfed.grid.joint_guarantee import Group, Joint
from privfed.grid.pictures.figures import text
from privfed.grid.planned_guarantee import Outlook
from privfed.grid.results import DONE, FAILED, REFUSED
from privfed.privacy.shared_noise import PARTY_WORDS
from privfed.report.tables import counted, rows
from privfed.words import ceiling

_SHOWN = 6
"""Populations whose joint ε is printed; all of them are in the table and the JSON."""


def cells_table(cells: Sequence[Cell], grid: Grid, excluded: Mapping[str, str]) -> Table:
    """Every combination of values once, with the number of the reason why it does not run."""
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
    """Each reason once, by its number."""
    return rows({f"[{n}]": why for why, n in _numbered(excluded).items()})


def _numbered(excluded: Mapping[str, str]) -> dict[str, int]:
    """A number for each reason that excludes a cell."""
    return {why: n for n, why in enumerate(dict.fromkeys(excluded.values()), start=1)}


def outlook_table(ahead: Outlook) -> Table:
    """What all cells will have spent together, for each population that they are about."""
    return rows(_joint_row(ahead.joint))


def experiment_table(outcome: Experiment) -> Table:
    """How all cells ended, and what they guarantee together."""
    counts = outcome.counts
    ends = (DONE, REFUSED, FAILED, "waiting")
    bad = counts[REFUSED] + counts[FAILED]
    pairs = {
        "cells": ", ".join(f"{counts[end]} {end}" for end in ends if counts[end])
        + (" (--retry repeats what was refused or failed)" if bad else ""),
        **_joint_row(outcome.joint),
        "table": f"{outcome.files.table} (and .parquet)",
        "summary": str(outcome.files.summary),
    }
    return rows(pairs)


def _joint_row(joints: Sequence[Joint]) -> dict[str, str]:
    """What is guaranteed over each population; those of which the same is said are one entry."""
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


def _joint_lines(joint: Joint) -> Iterator[str]:
    """What the cells over one population guarantee together, and why not more."""
    cells, apart = _all_cells(len(joint.cells)), ""
    if joint.void:
        apart = "the others: "
        yield f"∞ over {cells}: {'; '.join(joint.void)}"
    elif len(joint.groups) > 1:
        yield f"no one ε is over {cells}: they differ in {', '.join(joint.differ)}"
    for group in joint.groups:
        if group.bound.epsilon < math.inf:
            yield apart + _group_line(group, joint)
    if joint.examples:
        bound = joint.examples
        why = f": {bound.missing}" if bound.missing else ""
        yield f"{ceiling(bound.epsilon)} at δ = {bound.delta:g} for one example of a silo{why}"
    yield from joint.notes


def _group_line(group: Group, joint: Joint) -> str:
    """What some cells that may be composed guarantee together."""
    bound, count = group.bound, len(group.cells)
    over = _all_cells(count) if group.cells == joint.cells else counted(count, "cell")
    most = "at most " if joint.at_most else ""
    against = f", against {PARTY_WORDS[bound.against]}" if bound.against else ""
    nominal = " (nominal)" if joint.nominal else ""
    return (
        f"{most}{ceiling(bound.epsilon)} at δ = {bound.delta:g} for one {bound.unit} over {over}, "
        f"{bound.relation}{against}{nominal}"
    )


def _all_cells(count: int) -> str:
    """All of so many cells, in words."""
    return {1: "one cell", 2: "both cells"}.get(count, f"all {count} cells")
