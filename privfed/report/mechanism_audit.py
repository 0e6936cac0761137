"""What people see of a mechanism, or a function, that was tested without training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table

from accounting.empirical.verdicts import REFUTED_BELOW
from privfed.report.tables import rows
from privfed.text import ceiling

if TYPE_CHECKING:  # one of these needs no torch, and is not to wait for it
    from privfed.auditing.function_audit import FunctionAudit
    from privfed.auditing.mechanism_audit import MechanismAudit


def mechanism_table(audit: MechanismAudit) -> Group:
    """What was claimed for each scene, and what releases say; then the verdict."""
    table = _table("scene", "ε claimed", _bound(audit.confidence), "p-value")
    evaluation = audit.evaluation
    for kind, tests in (
        ("", audit.tested),
        ("evaluation: ", evaluation.tested if evaluation else ()),
    ):
        for tested in tests:
            bound = tested.verdict
            lower, p_value = f"{bound.epsilon_lower:.3g}", f"{bound.p_value:.2g}"
            table.add_row(kind + tested.scenario, ceiling(tested.epsilon), lower, p_value)
    event = audit.event
    facts = rows(
        {
            "noise": _noise(audit),
            **({"noise of evaluation": _noise(evaluation)} if evaluation else {}),
            "releases": f"{audit.releases} of each neighbour and scene",
            "relation": f"{event.relation}, {event.sampler} sampling",
            "verdict": _verdict(audit, "mechanism", "the ledger claims"),
        }
    )
    return Group(table, "", facts)


def function_table(audit: FunctionAudit) -> Group:
    """What releases of a function say by each score; then its claim and the verdict."""
    table = _table("score", _bound(audit.confidence), "p-value", "against")
    for tested in audit.tested:
        bound = tested.verdict
        lower, p_value = f"{bound.epsilon_lower:.3g}", f"{bound.p_value:.2g}"
        epsilon, delta = bound.claim
        table.add_row(tested.score, lower, p_value, f"ε {ceiling(epsilon)} at δ {delta:g}")
    claim, points = audit.claim, len(audit.claim.points)
    profile = f", and at {points - 1} further points of its profile" if points > 1 else ""
    facts = {
        "function": audit.name,
        "claim": f"ε {ceiling(claim.epsilon)} at δ {claim.delta:g}{profile}",
        "releases": f"{audit.releases} of each neighbour, {audit.numbers} numbers each",
        **({"aborted": _aborted(audit)} if any(audit.aborted) else {}),
        "verdict": _verdict(audit, "function", "is claimed"),
    }
    return Group(table, "", rows(facts))


def _table(first: str, *others: str) -> Table:
    """A table without rows, whose `first` column is of words and whose `others` are of numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(first, justify="left")
    for name in others:
        table.add_column(name, justify="right")
    return table


def _bound(confidence: float) -> str:
    return f"lower bound ({confidence:.0%} each)"


def _verdict(audit: MechanismAudit | FunctionAudit, what: str, claim: str) -> str:
    """Whether the claim is refuted, doubtful, or not contradicted, and the p-value behind that."""
    verdict = "the releases do not contradict the claim"
    if audit.doubted:
        verdict = "DOUBTFUL: try again with more releases"
    if audit.refuted:
        verdict = f"REFUTED: the {what} does not deliver what {claim}"
    return (
        f"{verdict} (p = {audit.p_value:.2g}, corrected over all tests; refuted below "
        f"{REFUTED_BELOW:g})"
    )


def _aborted(audit: FunctionAudit) -> str:
    """How many releases had a number that is not finite."""
    without, with_member = (f"{share:.1%}" for share in audit.aborted)
    return f"{without} without the member, {with_member} with it: numbers that are not finite"


def _noise(audit: MechanismAudit) -> str:
    """The deviation that was measured, over the one that was charged."""
    ratio, p_value = f"{audit.noise:.4f}", f"{audit.noise_p_value:.2g}"
    return f"{ratio} of what is charged (p = {p_value} that it is no less)"
