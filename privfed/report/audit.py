"""What people see of budgets alone: audits, and answers of calibrate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table

from accounting.guarantee import sentence
from accounting.two_sample import REFUTED_BELOW
from privfed.report.tables import (
    budget_rows,
    disjoint_line,
    example_line,
    head_line,
    opinions,
    rows,
    start_row,
    two_sided,
)
from privfed.words import ceiling, number

if TYPE_CHECKING:
    from privfed.auditing.joint_audit import Merged
    from privfed.auditing.mechanism_audit import MechanismAudit
    from privfed.auditing.run_audit import RunAudit


def audit_table(found: RunAudit) -> Table:
    facts = found.to_json()
    if found.problems:
        return rows({"ledger": "BROKEN", **{f"{n}": p for n, p in enumerate(found.problems, 1)}})
    pairs = {
        "ε": f"{ceiling(facts['epsilon'])} at δ = {facts['delta']:g} ({facts['accountant']})"
        + (" (nominal)" if facts["note"] else ""),
        "accountants": opinions(found.accountants),
        "unit": f"one {facts['unit']} with all its examples (partition {facts['partition']})",
        "relation": facts["relation"],
        "meaning": str(facts["meaning"]),
        "sampler": f"{facts['sampler']}, q = {number(found.sampling_rate)}",
        "noise": f"multiplier {ceiling(found.noise_multiplier)}, {facts['arithmetic']}",
        "randomness": str(facts["randomness"]),
        "rounds": f"{facts['rounds']} charged",
        "ledger": "ok: chain, checkpoint and configuration agree",
        "ledger head": head_line(str(found.ledger_head), found.charges),
        **_heads_rows(found),
    }
    if found.other:
        pairs |= two_sided(str(facts["against"]), found.other)
    if found.examples:
        pairs["examples"] = example_line(found.examples)
    if facts["prior"] and found.alone:
        pairs["prior"] = (
            f"of this, ε = {ceiling(found.alone.epsilon)} is this run's own; earlier runs: "
            f"{', '.join(facts['prior'])}"
        )
    pairs |= {
        **budget_rows(found.budgets),
        **(start_row(found.guarantee) if found.guarantee else {}),
    }
    if facts["disjoint"]:
        pairs["disjoint"] = disjoint_line(facts["disjoint"])
    if facts["guarantee"]:
        pairs |= {"meaning": "none", "guarantee": facts["guarantee"]}
    if found.canaries:
        from privfed.auditing.canaries.evidence import words  # few runs have canaries

        pairs |= words(found.canaries)
    elif found.terms.get("canaries"):
        pairs["canaries"] = (
            "nothing to say: the run has not ended, too few of them entered, or what they saw "
            "(under private/) is not here"
        )
    if facts["note"]:
        pairs["note"] = str(facts["note"])
    return rows(pairs)


def _heads_rows(found: RunAudit) -> dict[str, str]:
    """What heads that were kept elsewhere say of the ledger."""
    pairs = {}
    if found.since is not None:
        pairs["given head"] = f"ok: the ledger was there, and {found.since} charges came since"
    if found.heads:
        pairs["heads"] = (
            f"ok: {found.heads.path} agrees"
            if found.heads.agrees
            else f"not compared: {found.heads.path} (run.heads) is not here"
        )
    return pairs


def mechanism_table(found: MechanismAudit) -> Group:
    """What was claimed for each scene, and what releases say; then the verdict."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("scene", "ε claimed", f"lower bound ({found.confidence:.0%} each)", "p-value"):
        table.add_column(name, justify="left" if name == "scene" else "right")
    for one in found.tested:
        bound = one.verdict
        table.add_row(
            one.scene, ceiling(one.epsilon), f"{bound.epsilon_lower:.3g}", f"{bound.p_value:.2g}"
        )
    event = found.event
    said = "the releases are what the claim allows"
    if found.refuted:
        said = "REFUTED: the mechanism does not deliver what the ledger claims"
    facts = rows(
        {
            "noise": f"{found.noise:.4f} of what is charged (p = {found.noise_p_value:.2g} that "
            "it is no less)",
            "releases": f"{found.releases} of each neighbour and scene",
            "relation": f"{event.relation}, {event.sampler} sampling",
            "verdict": f"{said} (p = {found.p_value:.2g}, corrected over all tests; refuted below "
            f"{REFUTED_BELOW:g})",
        }
    )
    return Group(table, "", facts)


def merged_table(found: Merged) -> Table:
    """Each run alone, and all together."""
    if found.bound is None:
        return rows({"ledger": "BROKEN", **{f"{n}": p for n, p in enumerate(found.problems, 1)}})
    bound = found.bound
    alone = {
        str(run.path): f"ε = {ceiling(run.alone.epsilon)} alone, {run.charges} rounds charged"
        for run in found.runs
        if run.alone
    }
    pairs = {
        **alone,
        "together": f"ε = {ceiling(bound.epsilon)} at δ = {bound.delta:g} ({bound.accountant}: "
        f"{opinions(bound.by_accountant)})",
        "meaning": sentence(bound),
    }
    if found.other:
        pairs |= two_sided(bound.against, found.other)
    if found.examples:
        pairs["examples"] = example_line(found.examples)
    for run in found.runs:
        if run.budgets:
            pairs[f"budgets of {run.path}"] = budget_rows(run.budgets)["budgets"]
    if found.earlier:
        pairs["earlier"] = f"runs that these had counted are included: {', '.join(found.earlier)}"
    if note := found.to_json()["note"]:
        pairs["note"] = str(note)
    return rows(pairs)
