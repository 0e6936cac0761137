"""What the audit says: that files agree, and what canaries show, where that may be shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from privfed.auditing.audited_run import RunAudit
from privfed.auditing.canaries.evidence import Evidence, evidence_rows
from privfed.report.canvas import canvas
from privfed.report.page.blocks import Block, Chapter, Facts, Figures, Picture
from privfed.report.page.drawing import as_svg, without_warnings
from privfed.report.page.run_facts import PageFacts
from privfed.report.page.svg import inline
from privfed.report.tables import accountant_epsilons
from privfed.words import ceiling


def audit_chapter(facts: PageFacts) -> Chapter:
    """What anybody may know of the audit: nothing here follows from canaries' coins."""
    audit = facts.audit
    pairs = {
        "ledger": "in order: its chain, the checkpoint and the configuration agree",
        "analytic ε": f"{accountant_epsilons(audit.accountants)} at δ = {audit.terms['delta']:g} "
        f"({facts.meaning})",
    }
    if audit.heads:
        agrees = "agrees" if audit.heads.agrees else "is not here, so it was not compared"
        pairs["kept heads"] = f"{audit.heads.path} {agrees}"
    if count := audit.terms.get("canaries"):
        pairs["canaries"] = (
            f"{count} were declared; what they show is about coins that stay private, and "
            "is on this page with --simulation only"
        )
    return Chapter("audit", "The audit", [Facts(pairs)])


@dataclass(frozen=True)
class _Mark:
    """An ε on the axis: a bound that the truth is below or above of, or an estimate."""

    label: str
    epsilon: float
    marker: str
    words: str


def canary_blocks(audit: RunAudit, evidence: Evidence) -> Sequence[Block]:
    """Analytic ε, estimates and lower bounds in one picture, and in words."""
    return [_picture(_marks(audit, evidence)), Facts(evidence_rows(evidence))]


def _marks(audit: RunAudit, evidence: Evidence) -> list[_Mark]:
    claims = [
        _Mark(f"{name}: ε at most", value, "<", f"at most {ceiling(value)}")
        for name, value in audit.accountants.items()
        if value is not None
    ]
    estimates = [
        ("estimate, every release", evidence.epsilon_estimate_all_iterates),
        ("estimate, final model", evidence.epsilon_estimate_final),
    ]
    bounds = [
        ("ε at least, every release", evidence.epsilon_lower_bound),
        ("ε at least, final model", evidence.epsilon_lower_bound_final),
    ]
    return [
        *claims,
        *(_Mark(label, e, "o", f"about {e:.3g}") for label, e in estimates if e is not None),
        *(_Mark(label, e, ">", f"at least {e:.3g}") for label, e in bounds if e is not None),
    ]


def _picture(marks: Sequence[_Mark]) -> Picture:
    """A line for each mark, with ε along the axis."""
    title = "Analytic ε, estimates and lower bounds by canaries"
    shown = [mark for mark in marks if math.isfinite(mark.epsilon)]
    with without_warnings(), canvas(1, 1, (5.2, 0.7 + 0.32 * len(shown))) as (figure, ((panel,),)):
        for place, mark in enumerate(shown):
            panel.plot([mark.epsilon], [place], mark.marker, color="#000000", markersize=7)
        panel.set_yticks(range(len(shown)), [mark.label for mark in shown])
        panel.invert_yaxis()
        panel.set_xlim(left=min([0.0, *(mark.epsilon for mark in shown)]))
        panel.margins(x=0.1, y=0.2)
        panel.set_xlabel("ε")
        drawn = as_svg(figure)
    words = "; ".join(f"{mark.label} {mark.words}" for mark in marks)
    numbers = Figures(
        f"{title}: the numbers", ["what", "ε"], [[mark.label, mark.words] for mark in marks]
    )
    return Picture(inline(drawn, "canaries", title, f"{words}."), title, numbers)
