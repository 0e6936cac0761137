"""What people see of budgets alone: audits, and answers of calibrate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table

from accounting.guarantee import sentence
from accounting.two_sample import REFUTED_BELOW
from privfed.auditing.canaries.evidence import evidence_rows
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
    from privfed.auditing.audited_run import RunAudit
    from privfed.auditing.joint_audit import JointAudit
    from privfed.auditing.mechanism_audit import MechanismAudit
    from privfed.plan.calibrate import Answer


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
        pairs |= evidence_rows(found.canaries)
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
    if found.charges_since is not None:
        pairs["given head"] = (
            f"ok: the ledger was there, and {found.charges_since} charges came since"
        )
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
            one.scenario, ceiling(one.epsilon), f"{bound.epsilon_lower:.3g}", f"{bound.p_value:.2g}"
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


def merged_table(found: JointAudit) -> Table:
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


def calibration_table(answer: Answer) -> Table:
    """The four numbers, the solved one marked, and what they mean."""
    asked, bound = answer.question, answer.bound
    witness = answer.cost.witness

    def shown(name: str, text: str) -> str:
        return f"{text}  (solved for)" if name == answer.solved else text

    drawn = f"q = {witness.rate:g}"
    if asked.cohort is not None:
        drawn = f"{asked.cohort} of {asked.population} clients ({drawn})"
    if witness.separation > 1:
        drawn = f"once in {witness.separation} rounds"
    return rows(
        {
            "noise multiplier": shown("noise_multiplier", ceiling(asked.noise_multiplier)),
            "ε": shown(
                "epsilon",
                f"{ceiling(bound.epsilon)} at δ = {bound.delta:g} ({asked.accountant})",
            ),
            "accountants": opinions(bound.by_accountant),
            "rounds": shown("rounds", str(asked.rounds)),
            "cohort": shown("cohort", drawn),
            **_sum_rows(answer),
            "meaning": f"{asked.mechanism}: unit {bound.unit}, {bound.relation}, {asked.sampler} "
            "sampling",
        }
    )


def _sum_rows(answer: Answer) -> dict[str, str]:
    """Of a secure sum: how it aborts; of noise that clients share: what each does, and its cost."""
    sums, asked = answer.sum_json(), answer.question
    if not sums:
        return {}
    aborts = {"aborts": f"a round with a probability of at most {sums['aborts']:.2g}"}
    if not asked.distributed:
        return aborts if sums["aborts"] else {}
    return {
        "against": "who reads the aggregates" if asked.against == "readers" else "the server",
        "counted": f"{sums['honest']:.0%} of the noise, which honest clients add",
        "grid": (
            f"steps of {sums['step']:.3g} for a clip of {sums['clip']:g}; rounding makes rows up "
            f"to {sums['encoded']:.4g} times as long"
        ),
        "a client": (
            f"adds noise of deviation {sums['share_deviation']:.3g} and sends "
            f"{sums['bytes_per_client']:,.0f} bytes"
        ),
        "wraps": f"a number of the sum with a probability of {sums['wraps']:.2g}",
        **(aborts if sums["aborts"] else {}),
    }


def alternatives_table(answer: Answer, others: Iterable[tuple[str, Answer]]) -> Table:
    """What else would do, one change at a time."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("with", "noise multiplier", "ε", "δ", "rounds", "cohort"):
        table.add_column(name, justify="left" if name == "with" else "right")
    for change, other in [("as asked", answer), *others]:
        asked = other.question
        drawn = asked.cohort if asked.cohort is not None else other.cost.witness.rate
        table.add_row(
            change,
            ceiling(asked.noise_multiplier),
            ceiling(other.bound.epsilon),
            f"{asked.delta:g}",
            str(asked.rounds),
            f"{drawn:.4g}" if isinstance(drawn, float) else str(drawn),
        )
    return table
