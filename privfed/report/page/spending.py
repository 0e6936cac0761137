"""What ε the run spent: over rounds with its budget, and over δ; by each accountant."""

from __future__ import annotations

import math
from collections.abc import Sequence

from accounting.accountants import ACCOUNTANTS
from accounting.curves import Curve, over_delta, over_rounds, spent_by
from accounting.guarantee import guarantee
from privfed.report.page.blocks import Block, Chapter, Figures, Paragraph
from privfed.report.page.drawing import Axes, Line, lines_picture
from privfed.report.page.run_facts import PageFacts
from privfed.words import ceiling


def spending_chapter(facts: PageFacts) -> Chapter:
    """Two pictures, or why there is nothing to draw."""
    ledger = facts.ledger
    delta = float(ledger.terms["delta"])
    rounds = over_rounds(ledger.prior, spent_by(ledger), delta)
    budget = ledger.budget
    level = ("budget", budget) if budget and math.isfinite(budget) else None
    pictures = (
        lines_picture(
            "epsilon-by-round",
            f"ε by charged round, at δ = {delta:g} ({facts.meaning})",
            Axes("charged rounds", "ε", ceiling, level=level, from_zero=True),
            _lines(rounds),
        ),
        lines_picture(
            "privacy-profile",
            f"ε over δ after all rounds: the privacy profile ({facts.meaning})",
            Axes("δ", "ε", ceiling, log=True, from_zero=True),
            _lines(over_delta(ledger.spending, delta)),
        ),
    )
    drawn: list[Block] = [picture for picture in pictures if picture]
    return Chapter("epsilon", "What was spent", [_words(facts), *_parts(facts), *drawn])


def _parts(facts: PageFacts) -> list[Block]:
    """What each kind of release would have spent by itself, where there are several."""
    charged = facts.ledger.run_spending
    if len(charged) < 2:
        return []
    delta, evaluating = float(facts.ledger.terms["delta"]), facts.plan and facts.plan.evaluation
    lines = [
        [
            "evaluation by clients" if evaluating and event == evaluating.event else "training",
            str(count),
            ceiling(guarantee({event: count}, delta).epsilon),
        ]
        for event, count in charged.items()
    ]
    columns = ["part", "charges", f"ε by itself, at δ = {delta:g}"]
    caption = "Parts of the run; what was spent is their composition, less than their sum"
    return [Figures(caption, columns, lines, frozenset({1, 2}))]


def _words(facts: PageFacts) -> Paragraph:
    bound = facts.audit.guarantee
    assert bound is not None
    text = (
        f"{facts.audit.charges} charged rounds spent ε = {ceiling(bound.epsilon)} at δ = "
        f"{bound.delta:g} ({facts.meaning}, accountant {bound.accountant})."
    )
    if math.isinf(bound.epsilon):
        text += " No accountant bounds it, so there is no curve."
    return Paragraph(text)


def _lines(curve: Curve) -> Sequence[Line]:
    """A line for each accountant, where it has a bound."""
    bounds = {name: [(at, by[name]) for at, by in curve] for name in ACCOUNTANTS}
    lines = (
        Line(name, [(at, epsilon) for at, epsilon in points if epsilon is not None])
        for name, points in bounds.items()
    )
    return [line for line in lines if line.drawable]
