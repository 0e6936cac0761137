"""The console table that compares two runs: results, guarantees and differing keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tomli_w
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from accounting.statement import epsilon_at
from privfed.core.text import ceiling, measure
from privfed.report.runs.compared import Comparison, Side
from privfed.report.runs.listing_table import (
    NOTHING,
    constant_cell,
    measure_cell,
    on_a_line,
    party,
    population_cell,
    rounds_cell,
    time_cells,
)
from privfed.report.tables import rows

_MOST_ROUNDS = 8
"""Largest number of evaluated rounds that are shown; --json has all of them."""
_LABELS = {"relation": "adjacency"}
"""The labels of terms whose names differ from those in ledgers."""
Line = tuple[str, str, str]


@dataclass(frozen=True)
class ComparisonTable:
    """The console output on two compared runs: a table with a column for each run, and notes."""

    compared: Comparison

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        yield _table(self.compared)
        yield rows({name: on_a_line(note) for name, note in _notes(self.compared).items()})


def _table(compared: Comparison) -> Table:
    """Returns the two runs in columns, by section; lines without values are left out."""
    left, right = compared.sides
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, expand=False)
    table.add_column("", style="cyan", overflow="fold", max_width=25)
    for side in compared.sides:
        table.add_column(Text(on_a_line(side.row.run)), overflow="fold", ratio=1)
    sections = (
        ("", _facts(left, right)),
        ("guarantee", _guarantees(compared)),
        ("configuration", _settings(compared)),
        ("by round (stated)", _rounds(left, right)),
    )
    for title, lines in sections:
        if title:
            table.add_row()
            table.add_row(Text(title, style="bold"))
        for name, *values in lines:
            if title == "configuration" or any(values):
                table.add_row(*(Text(on_a_line(cell)) for cell in (name, *values)))
    table.add_row()
    return table


def _notes(compared: Comparison) -> dict[str, str]:
    """Returns notes on both runs together, as texts by label."""
    why = "; ".join(compared.incomparable)
    comparable = "comparable: same unit, adjacency relation, δ and party"
    pairs = {"their ε": f"not comparable: {why}" if why else comparable}
    if compared.joint:
        joint = compared.joint
        pairs["joint ε"] = f"{_bound(joint)}, over both: {joint['meaning']}"
        if joint["note"]:
            pairs["joint ε"] += f" (nominal: {joint['note']})"
    else:
        pairs["joint ε"] = f"none: {compared.no_joint_reason}"
    return pairs


def _facts(left: Side, right: Side) -> Iterator[Line]:
    """Yields the table's lines on the progress and results of the runs."""
    both = left.row, right.row
    yield _line("state", [row.state for row in both])
    yield _line("rounds charged", map(rounds_cell, both))
    yield _line("measure", map(measure_cell, both))
    yield _line("baseline", [constant_cell(row) or NOTHING for row in both])
    yield _line("population", map(population_cell, both))
    yield _line("mechanism", [row.mechanism or NOTHING for row in both])
    yield _line("began", [" for ".join(filter(None, time_cells(row))) for row in both])
    yield _line("ledger head", [row.ledger_head or NOTHING for row in both])


def _guarantees(compared: Comparison) -> Iterator[Line]:
    """Yields the table's lines on each guarantee of the runs, with its terms."""
    sides = compared.sides
    for place in range(max(len(side.guarantees) for side in sides)):
        both = [side.guarantees[place] if place < len(side.guarantees) else {} for side in sides]
        name = "further ε" if place else "ε"
        yield _line(name, map(_epsilon, sides, both))
        for key in ("unit", "relation", "sampler", "accountant"):
            yield _line(
                f"  {_LABELS.get(key, key)}", [str(bound.get(key, NOTHING)) for bound in both]
            )
        yield _line("  against", map(_against, sides, both))
        yield _line("  not covered", [str(bound.get("uncovered") or "") for bound in both])
        yield _line("  missing", [str(bound.get("missing") or "") for bound in both])
    yield _line("note", [side.row.guarantee or side.row.note or "" for side in sides])


def _settings(compared: Comparison) -> Iterator[Line]:
    """Yields the table's lines on the keys that differ, with their values as in run files."""
    for each in compared.settings:
        yield each.key, _spelled(each.first), _spelled(each.second)
    if not compared.settings:
        yield "no key differs", "", ""


def _rounds(left: Side, right: Side) -> Iterator[Line]:
    """Yields the table's lines on the metric and ε at evenly chosen evaluated rounds."""
    rounds = sorted({point.round for side in (left, right) for point in side.curve})
    for round in _thinned(rounds):
        yield f"{round}", _at(left, round), _at(right, round)


def _thinned(rounds: Sequence[int]) -> list[int]:
    """Returns at most `_MOST_ROUNDS` of `rounds`, evenly chosen, with the first and the last."""
    if len(rounds) <= _MOST_ROUNDS:
        return [*rounds]
    step = (len(rounds) - 1) / (_MOST_ROUNDS - 1)
    return [rounds[int(place * step + 0.5)] for place in range(_MOST_ROUNDS)]


def _at(side: Side, round: int) -> str:
    """Formats the metric and ε of a run at a round; a dash if it was not evaluated."""
    for point in side.curve:
        if point.round == round:
            known = side.measure is not None and point.value is not None
            value = measure(str(side.measure), float(point.value or 0.0)) if known else NOTHING
            return f"{value}  ε {ceiling(point.epsilon)}"
    return NOTHING


def _bound(bound: Mapping[str, Any], nominal: bool = False) -> str:
    return epsilon_at(bound["epsilon"], bound["delta"], nominal, digits=10)


def _epsilon(side: Side, bound: Mapping[str, Any]) -> str:
    return _bound(bound, side.row.nominal) if bound else NOTHING


def _against(side: Side, bound: Mapping[str, Any]) -> str:
    return party(bound.get("against"), side.row.trust) if bound else NOTHING


def _line(name: str, values: Any) -> Line:
    first, second = values
    return name, first, second


def _spelled(value: Any) -> str:
    """Formats a value as TOML; a dash for None."""
    if value is None:
        return NOTHING
    return tomli_w.dumps({"a": value}).removeprefix("a = ").strip()
