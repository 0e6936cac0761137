"""The chapter of a page on the audit: the claimed ε, its proof, and its test by canaries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from accounting.statement import each_epsilon
from privfed.auditing.audited_run import RunAudit
from privfed.auditing.canaries.evidence import Evidence, evidence_rows, verdict_text
from privfed.auditing.canaries.power import Power
from privfed.core.text import ceiling
from privfed.report.canvas import canvas
from privfed.report.page.blocks import Block, Chapter, Facts, Figures, Paragraph, Picture
from privfed.report.page.drawing import Axes, Line, as_svg, inline, lines_picture, without_warnings
from privfed.report.page.promise import headline
from privfed.report.page.run_facts import PageFacts
from privfed.report.plan_privacy import fewest_text, power_text


def power_picture(power: Power) -> Picture | None:
    """Draws the probability that canaries detect too little noise, as a function of the true ε.

    None if the mechanism cannot simulate weaker noise, so that no probability is known.
    """
    lines = [
        Line(
            f"doubted at {power.confidence:.0%}",
            [(fault.epsilon, fault.doubted) for fault in power.noticed],
        ),
        Line("refuted at p < 1e-6", [(fault.epsilon, fault.refuted) for fault in power.noticed]),
    ]
    title = (
        f"Largest probability with which {power.canaries} canaries detect that ε exceeds the claim"
    )
    axes = Axes("true ε", "probability", _percent, log=True, from_zero=True, top=1.0)
    return lines_picture("power", title, axes, lines)


def _percent(value: float | None) -> str:
    return "—" if value is None else f"{value:.0%}"


def audit_chapter(facts: PageFacts) -> Chapter:
    """Returns the page's chapter on the audit, for readers such as data protection officers.

    Results of canaries may be published after the run: canaries contain no client's data, and ε
    holds against an adversary that knows all other clients.
    """
    audit, evidence = facts.audit, facts.audit.canaries
    pairs = {
        "claimed": headline(facts),
        "proved": f"re-computed from the ledger alone, whose chain, checkpoint and configuration "
        f"agree: {each_epsilon(audit.accountants)}"
        + (f". {_capital(facts.proof)}" if facts.proof else ""),
        **_kept_heads(audit),
        "tested": _tested(audit),
        **({"detectable fault": power_text(facts.power)} if facts.power else {}),
        **({"canaries needed": fewest_text(facts.power)} if facts.power else {}),
    }
    blocks: list[Block] = [Facts(pairs)]
    if evidence:
        blocks += canary_blocks(audit, evidence)
    if facts.power and (picture := power_picture(facts.power)):
        blocks.append(picture)
    return Chapter("audit", "The audit", [*blocks, Paragraph(_LIMITS)])


_LIMITS = (
    "A proof holds if the code does what it states. A test that detects no fault shows only that "
    "there is no fault of the size that it would detect."
)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _kept_heads(audit: RunAudit) -> dict[str, str]:
    """Returns a table row on the comparison of the ledger with the file that `run.heads` names.

    If that file is missing, the row states it. Empty if `run.heads` is not set.
    """
    if not audit.heads:
        return {}
    agrees = "agrees" if audit.heads.agrees else "is not available, so it was not compared"
    return {"kept heads": f"{audit.heads.path} {agrees}"}


def _tested(audit: RunAudit) -> str:
    """Describes the result of the run's canaries, or the reason why there is none."""
    count, evidence = audit.terms.get("canaries"), audit.canaries
    if not count:
        return (
            "not in this run: it had no canaries (audit.canaries). privfed audit --mechanism "
            "tests its configuration on thousands of releases"
        )
    if evidence is None:
        return (
            f"not yet: {count} canaries were declared, but the run has not ended, too few canaries "
            "took part, or their records are not available"
        )
    bounds = (evidence.epsilon_lower_bound, evidence.epsilon_lower_bound_final)
    known = [bound for bound in bounds if bound is not None]
    sure = 1 - len(known) * (1 - evidence.confidence)  # confidence that no bound exceeds the true ε
    alone = (
        "; this bound is for this run alone, without earlier runs"
        if audit.terms.get("prior")
        else ""
    )
    return (
        f"by {evidence.canaries} canaries, each included with probability 1/2 by a secret draw. "
        f"Membership inference on the releases shows that ε ≥ {max(known):.3g}, with {sure:.0%} "
        f"confidence. {_capital(verdict_text(evidence))}{alone}"
    )


@dataclass(frozen=True)
class _Mark:
    """One ε in the figure of the audit: an upper bound, a lower bound or an estimate."""

    label: str
    epsilon: float
    marker: str
    words: str


def canary_blocks(audit: RunAudit, evidence: Evidence) -> Sequence[Block]:
    """Returns a figure and a table of the claimed ε, and of lower bounds and estimates of ε."""
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
        ("… if Gaussian, every release", evidence.epsilon_lower_bound_if_gaussian),
        ("… if Gaussian, final model", evidence.epsilon_lower_bound_final_if_gaussian),
    ]
    drawn = [] if evidence.by_chance else estimates
    return [
        *claims,
        *(_Mark(label, e, "o", f"about {e:.3g}") for label, e in drawn if e is not None),
        *(_Mark(label, e, ">", f"at least {e:.3g}") for label, e in bounds if e is not None),
    ]


def _picture(marks: Sequence[_Mark]) -> Picture:
    """Draws the bounds and estimates below each other, with ε along the x axis."""
    title = "Analytic ε, and lower bounds from canaries"
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
