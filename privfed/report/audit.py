"""The console tables of audits: of one or several ledgers, of a mechanism, of a function."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table

from accounting.accountants import ACCOUNTANTS
from accounting.curves import Curve, over_delta, over_rounds, spent_events
from accounting.durable import write_atomically
from accounting.empirical.verdicts import REFUTED_BELOW
from accounting.ledger import Ledger
from accounting.statement import NOMINAL, at_delta, each_epsilon, epsilon_at
from privfed.auditing.audited_run import RunAudit
from privfed.auditing.canaries.evidence import evidence_rows
from privfed.auditing.joint_audit import JointAudit
from privfed.core.errors import Refused
from privfed.core.text import ceiling, number
from privfed.grid.pictures.figures import COLOURS, DASHES
from privfed.plan.assumed import Assumed
from privfed.report.tables import (
    budget_rows,
    chosen_row,
    disjoint_row,
    further_guarantee_rows,
    head_line,
    planned_row,
    rows,
    start_row,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from privfed.auditing.function_audit import FunctionAudit
    from privfed.auditing.mechanism_audit import MechanismAudit


def mechanism_table(audit: MechanismAudit) -> Group:
    """Returns a table of the claimed ε and its measured lower bound, and a verdict.

    Each line is for one scenario: a behaviour of the clients over some rounds, for which the audit
    compared releases of two neighbouring datasets.
    """
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
            "releases": f"{audit.releases} of each neighbour in each scene",
            "adjacency": f"{event.relation}, {event.sampler} sampling",
            "verdict": _verdict(audit, "mechanism", "the ledger claims"),
        }
    )
    return Group(table, "", facts)


def function_table(audit: FunctionAudit) -> Group:
    """Returns a table of measured lower bounds on ε, and a verdict on the claimed ε.

    There is one bound for each score: a number computed from a release, by which a test decides
    from which of the two neighbouring datasets the release was made.
    """
    table = _table("score", _bound(audit.confidence), "p-value", "against")
    for tested in audit.tested:
        bound = tested.verdict
        lower, p_value = f"{bound.epsilon_lower:.3g}", f"{bound.p_value:.2g}"
        epsilon, delta = bound.claim
        table.add_row(tested.score, lower, p_value, f"ε = {epsilon_at(epsilon, delta)}")
    claim, points = audit.claim, len(audit.claim.points)
    profile = f", and at {points - 1} further points of its profile" if points > 1 else ""
    facts = {
        "function": audit.name,
        "claim": f"ε = {epsilon_at(claim.epsilon, claim.delta)}{profile}",
        "releases": f"{audit.releases} of each neighbour, {audit.numbers} numbers each",
        **({"aborted": _aborted(audit)} if any(audit.aborted) else {}),
        "verdict": _verdict(audit, "function", "is claimed"),
    }
    return Group(table, "", rows(facts))


def _table(first: str, *others: str) -> Table:
    """Returns an empty table, with a `first` column of text and `others` of numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(first, justify="left")
    for name in others:
        table.add_column(name, justify="right")
    return table


def _bound(confidence: float) -> str:
    return f"lower bound ({confidence:.0%} each)"


def _verdict(audit: MechanismAudit | FunctionAudit, what: str, claim: str) -> str:
    """Returns the verdict (refuted, doubtful, or not contradicted), with the corrected p-value.

    `what` is the audited object, and `claim` ends the sentence: "REFUTED: the mechanism does not
    have the ε that the ledger claims".
    """
    verdict = "the releases do not contradict the claim"
    if audit.doubted:
        verdict = "DOUBTFUL: try again with more releases"
    if audit.refuted:
        verdict = f"REFUTED: the {what} does not have the ε that {claim}"
    return (
        f"{verdict} (p = {audit.p_value:.2g}, corrected over all tests; refuted below "
        f"{REFUTED_BELOW:g})"
    )


def _aborted(audit: FunctionAudit) -> str:
    """Describes the fraction of releases with a non-finite number, without and with the member."""
    without, with_member = (f"{share:.1%}" for share in audit.aborted)
    return f"{without} without the member, {with_member} with it: numbers that are not finite"


def _noise(audit: MechanismAudit) -> str:
    """Describes the ratio of measured to charged standard deviation of noise, and its p-value."""
    ratio, p_value = f"{audit.noise:.4f}", f"{audit.noise_p_value:.2g}"
    return f"{ratio} of the charged noise (p = {p_value} under the hypothesis that it is not less)"


KINDS = (".svg", ".png", ".pdf")


def draw_curves(ledger: Ledger, path: Path) -> dict[str, Curve]:
    """Draws a run's ε over rounds and over δ, and writes the figure to a file.

    Args:
      ledger: the ledger of the run.
      path: the file to write: .svg, .png or .pdf.

    Returns:
      The curves by name: "rounds" for ε over charged rounds, and "delta" for ε over δ.

    Raises:
      Refused: if `path` has another suffix, or no epsilon is finite.
    """
    if path.suffix not in KINDS:
        raise Refused(f"--plot is {path}; expected a name that ends in {', '.join(KINDS)}")
    delta = float(ledger.terms["delta"])
    curves = {
        "rounds": over_rounds(ledger.prior, spent_events(ledger), delta),
        "delta": over_delta(ledger.spending, delta),
    }
    finite = [e for curve in curves.values() for _, by in curve for e in by.values() if _finite(e)]
    if not finite:
        raise Refused(
            f"{ledger.path} has no finite epsilon, so there is nothing to draw; leave --plot out"
        )
    write_atomically(path, _picture(curves, delta, path.suffix[1:]))
    return curves


def _picture(curves: dict[str, Curve], delta: float, kind: str) -> bytes:
    """Draws ε over rounds next to ε over δ; returns the image file: "svg", "png" or "pdf"."""
    from privfed.report.canvas import canvas, image

    with canvas(1, 2, (7.6, 3.0)) as (figure, ((by_round, by_delta),)):
        _draw_lines(by_round, curves["rounds"])
        by_round.set(xlabel="charged rounds", ylabel="ε", title=at_delta(delta))
        _draw_lines(by_delta, curves["delta"])
        by_delta.set(xlabel="δ", xscale="log", title="after all rounds")
        by_delta.axvline(delta, color="#888888", linewidth=0.8)
        by_round.set_ylim(bottom=0)
        by_delta.set_ylim(bottom=0)
        by_round.legend()
        return image(figure, kind, 160, {"Date": None} if kind == "svg" else None)


def _draw_lines(axes: Axes, curve: Curve) -> None:
    """Draws one line for each accountant, where the accountant's epsilon is finite."""
    for name, colour, dash in zip(ACCOUNTANTS, COLOURS, DASHES, strict=False):
        points = [(at, by[name]) for at, by in curve if _finite(by[name])]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, linestyle=dash, label=name)


def _finite(epsilon: float | None) -> bool:
    return epsilon is not None and math.isfinite(epsilon)


def audit_table(audit: RunAudit) -> Table:
    """Returns a table of the ε that a run spent, and of its terms, such as unit and adversary.

    If the audit found problems in the run's files, the table lists these, and no ε.
    """
    facts = audit.to_json()
    if audit.problems:
        return _broken(audit.problems)
    pairs = {
        "ε": f"{epsilon_at(facts['epsilon'], facts['delta'])} ({facts['accountant']})"
        + NOMINAL * bool(facts["note"]),
        **planned_row(audit.planned),
        "accountants": each_epsilon(audit.accountants),
        "unit": f"one {facts['unit']} with all its examples (partition {facts['partition']})",
        "adjacency": facts["relation"],
        "meaning": str(facts["meaning"]),
        **_trust_row(Assumed.from_json(facts["assumes"])),
        "sampler": f"{facts['sampler']}, q = {number(audit.sampling_rate)}",
        "noise": f"multiplier {ceiling(audit.noise_multiplier)}, {facts['arithmetic']}",
        "randomness": str(facts["randomness"]),
        "rounds": f"{facts['rounds']} charged",
        "ledger": "ok: chain, checkpoint and configuration agree",
        "ledger head": head_line(str(audit.ledger_head), audit.charges),
        **_head_rows(audit),
        **further_guarantee_rows(
            str(facts["against"]), audit.examples, audit.other, audit.terms.get("colluders")
        ),
    }
    if facts["prior"] and audit.alone:
        pairs["prior"] = (
            f"included; this run alone spent ε = {ceiling(audit.alone.epsilon)}; earlier runs: "
            f"{', '.join(facts['prior'])}"
        )
    pairs |= chosen_row("chosen" in audit.terms)
    pairs |= budget_rows(audit.budgets)
    pairs |= start_row(audit.guarantee, _start(facts)) if audit.guarantee else {}
    pairs |= disjoint_row(facts["disjoint"] or ())
    if facts["guarantee"]:
        pairs |= {"meaning": "none", "guarantee": facts["guarantee"]}
    pairs |= _canary_rows(audit) | _excluded_row(audit)
    if facts["note"]:
        pairs["note"] = str(facts["note"])
    return rows(pairs)


def _trust_row(assumed: Assumed | None) -> dict[str, str]:
    """Returns a table row on the adversary that ε holds against; empty if none is stated."""
    return {} if assumed is None else {"trust model": str(assumed)}


def _colluding(merged: JointAudit) -> int:
    """Returns the largest number of clients that are assumed to collude or to be Byzantine.

    A number that is not stated, and colluders as a fraction of the cohort, count as 0.
    """
    assumed = merged.assumed
    return int(assumed.colluders or 0) + (assumed.byzantine or 0) if assumed else 0


def _start(facts: Mapping[str, Any]) -> str:
    """Names the initial model by its SHA-256 in an audit's JSON `facts`; "" if they state none."""
    return f"SHA-256 {facts['start'][:16]}…" if facts["start"] else ""


def _broken(problems: Sequence[str]) -> Table:
    """Returns a table of numbered problems, without an epsilon."""
    return rows({"ledger": "BROKEN", **{f"{n}": why for n, why in enumerate(problems, 1)}})


def _head_rows(audit: RunAudit) -> dict[str, str]:
    """Returns table rows on comparing the ledger with a given head and the heads file, if any."""
    pairs = {}
    if audit.charges_since is not None:
        pairs["given head"] = (
            f"ok: the ledger had this head, and {audit.charges_since} charges followed"
        )
    if audit.heads:
        pairs["heads"] = (
            f"ok: {audit.heads.path} agrees"
            if audit.heads.agrees
            else f"not compared: the file {audit.heads.path} (run.heads) is not available"
        )
    return pairs


def _canary_rows(audit: RunAudit) -> dict[str, str]:
    """Returns table rows on the canaries' evidence about the claimed ε.

    The row of a run whose canaries gave no evidence states possible reasons. Empty without
    canaries.
    """
    if audit.canaries:
        return dict(evidence_rows(audit.canaries))
    if not audit.terms.get("canaries"):
        return {}
    return {
        "canaries": (
            "no result: the run has not ended, too few canaries took part, or their records "
            "(under private/) are not available"
        )
    }


def _excluded_row(audit: RunAudit) -> dict[str, str]:
    """Returns a table row on the parties that were proved to be Byzantine; empty without any."""
    if not audit.excluded:
        return {}
    return {
        "excluded": f"{audit.excluded} proved to be Byzantine in secure sums "
        "(excluded.jsonl); `privfed report RUN` states whether ε depends on them"
    }


def merged_table(merged: JointAudit) -> Table:
    """Returns a table of the ε of each run, and of all runs together.

    If the audit found problems in the runs' files, the table lists these, and no ε.
    """
    bound = merged.bound
    if bound is None:
        return _broken(merged.problems)
    alone = {
        str(run.path): f"ε = {ceiling(run.alone.epsilon)} alone, {run.charges} rounds charged"
        for run in merged.runs
        if run.alone
    }
    pairs = {
        **alone,
        "together": f"{bound.line()} ({bound.accountant}: {each_epsilon(bound.by_accountant)})",
        "meaning": bound.sentence(),
        **_trust_row(merged.assumed),
        **further_guarantee_rows(bound.against, merged.examples, merged.other, _colluding(merged)),
    }
    for run in merged.runs:
        if run.budgets:
            pairs[f"budgets of {run.path}"] = budget_rows(run.budgets)["budgets"]
    if merged.earlier:
        pairs["earlier"] = (
            f"the earlier runs that these runs count are included: {', '.join(merged.earlier)}"
        )
    if note := merged.to_json()["note"]:
        pairs["note"] = str(note)
    return rows(pairs)
