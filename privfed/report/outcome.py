"""What people see of a run that has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.table import Table

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
from privfed.words import ceiling, measure

if TYPE_CHECKING:
    from privfed.run.outcome import Outcome
from privfed.report.plan import _unit


def beside_constant(name: str, of: Mapping[str, float], constant: Mapping[str, float]) -> str:
    """A measure, and what the best answer that looks at nothing has."""
    if name not in constant:
        return measure(name, of[name])
    return f"{measure(name, of[name])} (the best constant answer: {measure(name, constant[name])})"


def outcome_table(outcome: Outcome) -> Table:
    """How a run ended; no epsilon without what it means."""
    bound, event = outcome.guarantee, outcome.plan.event
    name = next(iter(outcome.measures))
    of = f"on {outcome.test_examples} public test examples"
    if outcome.test_shared:
        of = f"on {outcome.test_examples} examples of clients that train"
    if outcome.public:
        of = (
            f"on {outcome.test_examples} examples of {outcome.public} clients declared public, "
            "whom no guarantee covers (report/public_clients.json)"
        )
    pairs = {
        name: f"{beside_constant(name, outcome.measures, outcome.constant)} {of}",
        **_success(outcome),
        "ε": f"{ceiling(bound.epsilon)} at δ = {bound.delta:g}"
        + (" (nominal)" if outcome.plan.simulation else "")
        + (", earlier runs included" if outcome.plan.before.runs else ""),
        "unit": _unit(outcome.plan),
        "relation": f"{event.relation}, {event.sampler} sampling",
        "accountant": f"{bound.accountant} ({opinions(bound.by_accountant)})",
        "rounds": spent_rounds(outcome),
        "ledger head": head_line(outcome.ledger_head, outcome.charges),
        "run": str(outcome.path),
        **start_row(bound, outcome.plan.config.start.init),
        **budget_rows(outcome.plan.budgets),
    }
    if outcome.divergence.established:
        pairs["warning"] = outcome.divergence.sentence(outcome.plan.mechanism.private)
    if outcome.plan.config.privacy.disjoint:
        pairs["disjoint"] = disjoint_line(outcome.plan.config.privacy.disjoint)
    if other := outcome.plan.besides(outcome.charges):
        pairs |= two_sided(outcome.plan.config.privacy.against, other)
    if examples := outcome.plan.examples(outcome.charges):
        pairs["examples"] = example_line(examples)
    if outcome.plan.void:
        pairs["guarantee"] = outcome.plan.void
    if outcome.plan.simulation:
        pairs["note"] = outcome.plan.simulation
    return rows(pairs)


def _success(outcome: Outcome) -> dict[str, str]:
    """How often attackers with a target met it."""
    if "attack_success" not in outcome.measures:
        return {}
    met = outcome.measures["attack_success"]
    return {"attack": f"{met:.2%} of the examples that it aims at are read as it wants"}


def spent_rounds(outcome: Outcome) -> str:
    """How many rounds moved the model, and what became of the others."""
    said = f"{outcome.updates} of {outcome.plan.config.run.rounds}"
    aborted = len(outcome.aborts)
    lost = outcome.charges - outcome.updates - aborted
    if lost > 0:
        said += f" ({lost} charged but interrupted before its release)"
    if aborted:
        why = Counter(outcome.aborts.values()).most_common(1)[0][0]
        said += f" ({aborted} charged but aborted, mostly: {why})"
    if not outcome.updates and outcome.charges:
        said += " — the model is as it was at the start"
    if outcome.stopped_at_budget:
        said += (
            " — stopped at the budget; to go on, resume with a larger privacy.epsilon "
            "(the noise multiplier stays)"
        )
    return said
