"""What people see of a mechanism that was tested without training."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table

from accounting.empirical.two_sample import REFUTED_BELOW
from privfed.auditing.mechanism_audit import MechanismAudit
from privfed.report.tables import rows
from privfed.words import ceiling


def mechanism_table(audit: MechanismAudit) -> Group:
    """What was claimed for each scene, and what releases say; then the verdict."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("scene", "ε claimed", f"lower bound ({audit.confidence:.0%} each)", "p-value"):
        table.add_column(name, justify="left" if name == "scene" else "right")
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
    verdict = "the releases are what the claim allows"
    if audit.refuted:
        verdict = "REFUTED: the mechanism does not deliver what the ledger claims"
    facts = rows(
        {
            "noise": _noise(audit),
            **({"noise of evaluation": _noise(evaluation)} if evaluation else {}),
            "releases": f"{audit.releases} of each neighbour and scene",
            "relation": f"{event.relation}, {event.sampler} sampling",
            "verdict": f"{verdict} (p = {audit.p_value:.2g}, corrected over all tests; refuted "
            f"below {REFUTED_BELOW:g})",
        }
    )
    return Group(table, "", facts)


def _noise(audit: MechanismAudit) -> str:
    """The deviation that was measured, over the one that was charged."""
    ratio, p_value = f"{audit.noise:.4f}", f"{audit.noise_p_value:.2g}"
    return f"{ratio} of what is charged (p = {p_value} that it is no less)"
