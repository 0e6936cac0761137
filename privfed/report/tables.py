"""Rows that the tables of plans, runs, audits and calibrations share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from accounting.ledger import BudgetChange
from privfed.core.text import number
from privfed.privacy.shared_noise import OTHER_PARTY

if TYPE_CHECKING:  # lists of runs need no accountants, which take long to import
    from accounting.guarantee import Guarantee

LONGER_THAN_CLIPPED = 1.0005
"""Rows that are at most so many times as long as clipped ones are not said to be longer."""
_PARTIES = {
    "server": "the server, by the noise of honest survivors alone; it knows the cohort",
    "readers": "who reads the released aggregates, and not the messages",
    "sites": "the server, readers and colluding sites, by the noise of the other sites alone",
    "others": "all but a client's own site, by the noise of that site alone",
}
"""The party that distributed noise protects against, in words."""
_COLLUDING = "the server and up to {} clients that work with it, by the noise of the other clients"
"""The same of noise that pairs of clients share."""


def rows(pairs: Mapping[str, str]) -> Table:
    """Two columns without borders: what it is, and what is said of it."""
    table = Table(box=None, show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in pairs.items():
        table.add_row(key, Text(value))
    return table


def counted(count: int, what: str, ending: str = "s") -> str:
    """A count of `what`, which ends in `ending` where it is not one."""
    return f"{count} {what}{ending if count != 1 else ''}"


def head_line(head: str, charges: int) -> str:
    """The head to keep elsewhere: `privfed audit --head` takes it."""
    return f"{head} at {charges} charges"


def chosen_row(chosen: bool) -> dict[str, str]:
    """A note on what the epsilon of a run covers that was chosen among others."""
    text = "the best of a secret number of candidates; ε covers that it was chosen"
    return {"chosen": text} if chosen else {}


def planned_row(planned: Guarantee | None) -> dict[str, str]:
    """The epsilon of all planned rounds; nothing where all of them were done."""
    if planned is None:
        return {}
    return {
        "planned ε": (
            f"{planned.rows()['ε']}, for all rounds that were "
            "planned; report this one: a run that ended early states the ε of the rounds done, "
            "which is an odometer: no (ε, δ) is proved for it"
        )
    }


def beside_rows(
    against: str,
    examples: Guarantee | None,
    other: Guarantee | None,
    colluders: int | None = None,
) -> dict[str, str]:
    """Whom the headline is against, and what is guaranteed beside it: against the `other` party,
    and for one example.
    """
    pairs = party_rows(against, other, colluders)
    return {**pairs, "examples": example_line(examples)} if examples else pairs


def party_rows(
    against: str, other: Guarantee | None, colluders: int | None = None
) -> dict[str, str]:
    """Whom noise that clients share protects against, and as how many of them may collude."""
    if against == "clients":
        return {"against": _COLLUDING.format(colluders)}
    return two_sided(against, other) if against and other else {}


def two_sided(against: str, other: Guarantee) -> dict[str, str]:
    """Distributed noise protects against two parties: what the headline is about, and the other."""
    bound = f"{other.line()} ({other.relation})"
    why = f": {other.missing}" if other.missing else ""
    why += f"; {other.weakness}" if other.weakness else ""
    return {
        "against": _PARTIES[against],
        "besides": f"{bound} against {_PARTIES[OTHER_PARTY[against]]}{why}",
    }


def example_line(bound: Guarantee) -> str:
    """What DP-SGD guarantees one example of a silo, or why there is no such bound."""
    if bound.missing:
        return f"besides, {bound.sentence()}"
    return (
        f"besides, {bound.line()} for one example of any one "
        f"silo ({bound.relation}; {bound.rounds} rounds of DP-SGD at most)"
    )


def start_row(bound: Guarantee, init: str = "") -> dict[str, str]:
    """What the model started from, and whether `bound` covers that; nothing, where it was fresh."""
    if not init and not bound.uncovered:
        return {}
    start = init or "an earlier run's"
    return {"start": f"{start}; {bound.left_out if bound.uncovered else 'counted as earlier'}"}


def budget_rows(changes: Sequence[BudgetChange]) -> dict[str, str]:
    """Every change of the budget since the run began."""
    lines = (
        f"{'raised' if change.epsilon > change.before else 'lowered'} from ε = "
        f"{number(change.before)} to {number(change.epsilon)} from round {change.round} on"
        for change in changes
    )
    return {"budgets": "; ".join(lines)} if changes else {}


def disjoint_row(runs: Sequence[str]) -> dict[str, str]:
    """Which earlier runs are declared to be over other people; nothing where none is."""
    if not runs:
        return {}
    others = ", ".join(runs)
    return {"disjoint": f"nobody is in this run and in {others}, as privacy.disjoint declares"}
