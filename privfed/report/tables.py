"""Rows that the tables of runs, audits and calibrations share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from accounting.guarantee import Guarantee, left_out, sentence
from accounting.ledger import BudgetChange
from privfed.privacy.shared_noise import OTHER_PARTY
from privfed.words import ceiling, number

if TYPE_CHECKING:
    pass


def rows(pairs: Mapping[str, str]) -> Table:
    """Two columns without borders."""
    table = Table(box=None, show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in pairs.items():
        table.add_row(key, Text(value))
    return table


def head_line(head: str, charges: int) -> str:
    """What to keep elsewhere: `privfed audit --head` takes it."""
    return f"{head} at {charges} charges"


def opinions(by_accountant: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {ceiling(value)}" for name, value in by_accountant.items())


def two_sided(against: str, other: Guarantee) -> dict[str, str]:
    """Distributed noise protects against two parties: what the headline is about, and the other."""
    whom = {
        "server": "the server, by the noise of honest survivors alone; it knows the cohort",
        "readers": "who reads the released aggregates, and not the messages",
    }
    found = f"ε = {ceiling(other.epsilon)} at δ = {other.delta:g} ({other.relation})"
    why = f": {other.missing}" if other.missing else ""
    return {
        "against": whom[against],
        "besides": f"{found} against {whom[OTHER_PARTY[against]]}{why}",
    }


def start_row(bound: Guarantee, init: str = "") -> dict[str, str]:
    """What the model started from, and whether `bound` covers that; nothing, where it was fresh."""
    if not init and not bound.uncovered:
        return {}
    start = init or "an earlier run's"
    return {"start": f"{start}; {left_out(bound) if bound.uncovered else 'counted as earlier'}"}


def budget_rows(changes: Sequence[BudgetChange]) -> dict[str, str]:
    """Every change of the budget since the run began."""
    said = (
        f"{'raised' if one.epsilon > one.before else 'lowered'} from ε = {number(one.before)} to "
        f"{number(one.epsilon)} from round {one.round} on"
        for one in changes
    )
    return {"budgets": "; ".join(said)} if changes else {}


def disjoint_line(runs: Sequence[str]) -> str:
    return f"nobody is in this run and in {', '.join(runs)}, as privacy.disjoint declares"


def example_line(bound: Guarantee) -> str:
    if bound.missing:
        return f"besides, {sentence(bound)}"
    return (
        f"besides, ε = {ceiling(bound.epsilon)} at δ = {bound.delta:g} for one example of any one "
        f"silo ({bound.relation}; {bound.rounds} rounds of DP-SGD at most)"
    )
