"""What all rounds of a run leave of its budget, why, and what would use it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from accounting.calibration import most_rounds
from accounting.errors import AccountingError
from privfed.plan import Plan

_WORTH_SAYING = 0.05
"""The part of a budget from which on it is said that it stays unspent."""
_LESS = 0.99
"""Noise below this part of a run's would learn more for the same budget."""


@dataclass(frozen=True)
class Unspent:
    """`epsilon` of the budget that no round uses, `why`, and what would use it (`instead`)."""

    epsilon: float
    why: str
    instead: str

    def __str__(self) -> str:
        return f"ε = {self.epsilon:.3g} of the budget stays unspent: {self.why}; {self.instead}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def unspent(plan: Plan) -> Unspent | None:
    """More than a twentieth of the budget that all configured rounds leave; None where less.

    What is left is nobody's gain: the same promise would have allowed less noise or more rounds.
    """
    budget = plan.budget
    if budget is None or budget == math.inf:
        return None
    left = budget - plan.guarantee.epsilon
    if not left > _WORTH_SAYING * budget:
        return None
    if plan.cost.aborts and _solved_without_aborts(plan) < _LESS * (plan.noise_multiplier or 0.0):
        return Unspent(left, _aborts(plan), _FEWER_ABORTS)
    return Unspent(left, f"the noise multiplier stays {plan.noise_multiplier:.4g}", _rounds(plan))


_FEWER_ABORTS = (
    "raise cohort.size or secure.capacity, lower secure.admitted, secure.threshold, secure.minimum "
    'or cohort.dropout, or use a draw that is no secret: cohort.sampler = "full" or "cyclic"'
)


def _aborts(plan: Plan) -> str:
    return (
        f"a round aborts for all to see with a probability of at most {plan.cost.aborts:.2g}, "
        "which costs (1 + e^ε) times that of δ, however loud the noise"
    )


def _solved_without_aborts(plan: Plan) -> float:
    """The noise multiplier that the budget would have, were aborts free."""
    privacy, rounds = plan.config.privacy, plan.config.run.rounds
    free = replace(plan.cost, aborts=0.0)
    try:
        assert plan.budget is not None
        return free.solve(
            rounds, plan.budget, privacy.delta, privacy.accountant, plan.before.spending
        )
    except AccountingError:
        return math.inf


def _rounds(plan: Plan) -> str:
    """How many rounds would use what is left, at this noise."""
    privacy, rounds = plan.config.privacy, plan.config.run.rounds
    less = "or start a new run, whose noise is solved for this budget"
    try:
        assert plan.budget is not None
        most = most_rounds(
            plan.event, plan.budget, privacy.delta, privacy.accountant, plan.before.spending
        )
    except AccountingError:
        return f"raise run.rounds, {less}"
    if most <= rounds:
        return f"not even one round more fits; {less.removeprefix('or ')}"
    return f"raise run.rounds from {rounds} to up to {most}, {less}"
