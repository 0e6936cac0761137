"""Rows, as texts by label, that occur in several tables: of plans, runs, audits, calibrations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from accounting.ledger import BudgetChange
from accounting.statement import epsilon_at
from privfed.core.errors import for_interface
from privfed.core.text import number
from privfed.privacy.shared_noise import OTHER_PARTY

if TYPE_CHECKING:  # lists of runs need no accountants
    from accounting.guarantee import Guarantee
    from privfed.analytics.release import SumsRelease

LONGER_THAN_CLIPPED = 1.0005
"""An increase of norms by rounding is reported if its factor exceeds this."""
PARTIES = {
    "server": "a server that knows the cohort; only the noise of honest survivors counts",
    "readers": "readers of the released aggregates, who do not see the messages",
    "sites": "the server, readers and colluding sites; only the noise of other sites counts",
    "others": "all parties except a client's own site; only the noise of that site counts",
}
"""Descriptions of the adversaries of distributed noise."""
_COLLUDING = "the server and up to {} colluding clients; only the noise of other clients counts"
"""Description of the adversary if pairs of clients share noise."""


def rows(pairs: Mapping[str, str]) -> Table:
    """Returns a console table of labels and texts, in two columns without borders."""
    table = Table(box=None, show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in pairs.items():
        table.add_row(key, Text(for_interface(value)))
    return table


def counted(count: int, what: str, ending: str = "s") -> str:
    """Formats "`count` `what`", with the plural `ending` unless the count is 1: "2 rounds"."""
    return f"{count} {what}{ending if count != 1 else ''}"


def overflow_text(probability: float) -> str:
    """Formats the probability that an entry of a sum overflows its modulus.

    A probability below 1e-300, which float64 may not represent, is called negligible.
    """
    if probability < 1e-300:
        return "negligible: an entry of the sum with a probability below 1e-300"
    return f"an entry of the sum with a probability of {probability:.2g}"


def head_line(head: str, charges: int) -> str:
    """Formats a ledger's head and number of charges.

    Users record the head elsewhere, for `privfed audit --head`.
    """
    return f"{head} at {counted(charges, 'charge')}"


def release_rows(release: SumsRelease) -> dict[str, str]:
    """Returns the table rows on the guarantee, ledger and file of a release of counts."""
    bound, earlier = release.guarantee, release.with_earlier
    nominal = bool(release.note)
    together = {}
    if earlier is not None:
        why = f": {earlier.missing}" if earlier.missing else ""
        together["with earlier"] = epsilon_at(earlier.epsilon, earlier.delta, nominal) + why
    return {
        "ε": epsilon_at(bound.epsilon, bound.delta, nominal),
        **({"caveat": bound.caveat} if bound.caveat else {}),
        **together,
        "unit": f"{bound.unit}, {bound.relation}, by {release.mechanism} noise",
        **party_rows(bound.against, release.other),
        "ledger head": head_line(release.ledger_head, release.charges),
        "release": f"{release.run}/{release.file}",
        **({"note": release.note} if release.note else {}),
    }


def decimal(value: float | None) -> str:
    """Formats a number with three decimals; None as a dash."""
    return "—" if value is None else f"{value:.3f}"


def estimated_count(value: float | None) -> str:
    """Formats an estimated count, rounded to an integer and at least 0; None as a dash."""
    return "—" if value is None else f"{max(value, 0.0):.0f}"


def with_interval(*estimate: float | None, missing: str) -> str:
    """Formats a value and its interval as "7.1 (5.9 to 8.2)".

    `estimate` has three numbers: value, low and high; `missing` is shown in the place of None.
    """
    value, low, high = (missing if each is None else f"{each:.4g}" for each in estimate)
    return f"{value} ({low} to {high})"


def chosen_row(chosen: bool) -> dict[str, str]:
    """Returns a table row that the run was chosen by private tuning; empty unless `chosen`."""
    text = "the best of a secret number of candidates; ε covers the choice"
    return {"chosen": text} if chosen else {}


def planned_row(planned: Guarantee | None) -> dict[str, str]:
    """Returns a table row on the ε of all planned rounds, which is to be reported; empty for None.

    A run has such a `planned` guarantee if the ε of its charged rounds is another one.
    """
    if planned is None:
        return {}
    return {"planned ε": f"{planned.rows()['ε']}; report this one: {planned.caveat}"}


def further_guarantee_rows(
    against: str,
    examples: Guarantee | None,
    other: Guarantee | None,
    colluders: int | None = None,
) -> dict[str, str]:
    """Returns table rows on the adversary of ε, and on the further guarantees of a run.

    Args:
      against: the adversary of ε, a key of `PARTIES`, or "clients" if pairs of clients share noise;
        "" for no row on the adversary.
      examples: the guarantee for one example of a silo; None if there is none.
      other: the guarantee against a second adversary; None if there is none.
      colluders: largest number of colluding clients; read only if `against` is "clients".

    Returns:
      Texts by label; empty if there is nothing to state.
    """
    pairs = party_rows(against, other, colluders)
    return {**pairs, "examples": example_line(examples)} if examples else pairs


def party_rows(
    against: str, other: Guarantee | None, colluders: int | None = None
) -> dict[str, str]:
    """Returns table rows on the adversary of ε, and on the guarantee against a second adversary.

    Args:
      against: the adversary of ε, a key of `PARTIES`, or "clients" if pairs of clients share noise;
        "" for no row.
      other: the guarantee against a second adversary; None if there is none.
      colluders: largest number of colluding clients; read only if `against` is "clients".

    Returns:
      Texts by label; empty if `against` is "", or is not "clients" and `other` is None.
    """
    if against == "clients":
        return {"adversary": _COLLUDING.format(colluders)}
    return two_sided(against, other) if against and other else {}


def two_sided(against: str, other: Guarantee) -> dict[str, str]:
    """Returns table rows on the adversary `against` of ε, and on the guarantee `other`.

    The latter holds against a second adversary, which `against` determines (`OTHER_PARTY`).
    """
    bound = f"{other.line()} ({other.relation})"
    why = f": {other.missing}" if other.missing else ""
    why += f"; {other.delta_warning}" if other.delta_warning else ""
    return {
        "adversary": PARTIES[against],
        "second adversary": f"{bound} against {PARTIES[OTHER_PARTY[against]]}{why}",
    }


def example_line(bound: Guarantee) -> str:
    """Formats the guarantee of DP-SGD for one example of a silo, or why there is none."""
    if bound.missing:
        return f"also, {bound.sentence()}"
    return (
        f"also, {bound.line()} for one example of any one silo ({bound.relation}; "
        f"{bound.rounds} rounds of DP-SGD at most)"
    )


def start_row(bound: Guarantee, init: str = "") -> dict[str, str]:
    """Returns a table row on the initial model, and whether the guarantee covers its training.

    Args:
      bound: the guarantee of the run.
      init: text that names the initial model; "" for a model without earlier training.

    Returns:
      Text by label; empty if `init` is "" and `bound` covers all earlier training.
    """
    if not init and not bound.uncovered:
        return {}
    start = init or "an earlier run's"
    covered = "the runs that trained it are counted"
    return {"start": f"{start}; {bound.left_out if bound.uncovered else covered}"}


def budget_rows(changes: Sequence[BudgetChange]) -> dict[str, str]:
    """Returns a table row on every change of the budget since the run began; empty without any."""
    lines = (
        f"{'raised' if change.epsilon > change.before else 'lowered'} from ε = "
        f"{number(change.before)} to {number(change.epsilon)} from round {change.round} on"
        for change in changes
    )
    return {"budgets": "; ".join(lines)} if changes else {}


def disjoint_row(runs: Sequence[str]) -> dict[str, str]:
    """Returns a table row on the runs that are declared to share no client; empty without any."""
    if not runs:
        return {}
    others = ", ".join(runs)
    return {"disjoint": f"this run shares no client with {others}, as privacy.disjoint declares"}
