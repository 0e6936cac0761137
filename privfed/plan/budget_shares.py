"""The separate epsilons of a run's training and evaluation rounds, and the unspent budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from accounting.calibration import most_rounds
from accounting.documents import UNSTATED, Encoded
from accounting.errors import AccountingError
from accounting.events import Event
from accounting.guarantee import guarantee
from accounting.noises import Gaussian
from accounting.over_rounds import Separated
from privfed.plan.plan import Plan
from privfed.plan.round_cost import RoundCost
from privfed.sampling.cohort import draws_of

_WORTH_SAYING = 0.05
"""Fraction of the budget above which unspent budget is reported."""
_LESS = 0.99
"""Ratio of two noise multipliers below which the first counts as smaller."""


@dataclass(frozen=True)
class UnspentBudget(Encoded):
    """The unspent budget: its `epsilon`, and texts on the reason (`why`) and use (`instead`)."""

    epsilon: float
    why: str
    instead: str

    def __str__(self) -> str:
        return f"ε = {self.epsilon:.3g} of the budget remains unspent: {self.why}; {self.instead}"


def unspent_budget(plan: Plan) -> UnspentBudget | None:
    """Returns the budget that the planned rounds leave unspent; None without a finite budget.

    Also returns None if at most the fraction `_WORTH_SAYING` of the budget remains. Unspent budget
    has no benefit: the same budget would allow less noise or more rounds.
    """
    budget = plan.budget
    if budget is None or budget == math.inf:
        return None
    left = budget - plan.guarantee.epsilon
    if not left > _WORTH_SAYING * budget:
        return None
    noise, enough = plan.noise_multiplier or 0.0, _solved_noise(plan, plan.cost)
    without_aborts = _solved_noise(plan, plan.cost.without_aborts)
    if plan.cost.revealing_aborts and without_aborts < _LESS * enough:
        return UnspentBudget(left, _cost_of_aborts(plan), _fewer_aborts())
    if enough < _LESS * noise:
        why = f"the noise multiplier remains {noise:.4g}, although {enough:.4g} would suffice"
        return UnspentBudget(left, why, f"{_more_rounds(plan)}, or start a new run")
    finer = ", or raise secure.bits" if plan.mechanism.trust == "sum" else ""
    why = f"a noise multiplier below {noise:.4g} has no proof here"
    return UnspentBudget(left, why, _more_rounds(plan) + finer)


def _cost_of_aborts(plan: Plan) -> str:
    return (
        "a round aborts visibly, or lacks a part of the cohort, with a probability of at most "
        f"{plan.cost.revealing_aborts:.2g}, and (1 + e^ε) times this probability is charged to δ "
        "for any noise"
    )


def _solved_noise(plan: Plan, cost: RoundCost) -> float:
    """Returns the smallest noise multiplier within the budget for rounds of this `cost`.

    The result is infinite if no noise is enough.
    """
    privacy, before = plan.config.privacy, plan.before.spending
    rounds, budget = plan.training_rounds, privacy.epsilon or 0.0
    evaluating = plan.evaluation_cost.spending if plan.evaluation_cost else None
    try:
        return cost.solve(rounds, budget, privacy.delta, privacy.accountant, before, evaluating)
    except AccountingError:
        return math.inf


def _more_rounds(plan: Plan) -> str:
    """Returns advice on raising `run.rounds` at the same noise, or that no further round fits."""
    privacy, rounds, before = plan.config.privacy, plan.config.run.rounds, plan.before.spending
    if plan.evaluation is not None:
        return "raise run.rounds"
    try:
        most = most_rounds(
            plan.event, privacy.epsilon or 0.0, privacy.delta, privacy.accountant, before
        )
    except AccountingError:
        return "raise run.rounds"
    if most <= rounds:
        return "no further round fits"
    return f"raise run.rounds from {rounds} to up to {most}"


@dataclass(frozen=True)
class BudgetShare(Encoded):
    """The training or the evaluation rounds of a run, each charged as `event`, and their epsilon.

    `epsilon` counts only these rounds. `noise_multiplier` is None for a mechanism without noise.
    """

    part: str = field(metadata=UNSTATED)
    rounds: int
    event: Event
    epsilon: float
    noise_multiplier: float | None


def budget_shares(plan: Plan) -> tuple[BudgetShare, ...]:
    """Returns the `BudgetShare` of training and of evaluation; empty if clients do not evaluate."""
    if plan.evaluation is None:
        return ()
    evaluations = plan.config.evaluation_rounds.among(plan.config.run.rounds)
    return (
        _alone("training", plan, plan.config.run.rounds - evaluations),
        _alone("evaluation", plan.evaluation, evaluations),
    )


def _alone(part: str, plan: Plan, rounds: int) -> BudgetShare:
    privacy = plan.config.privacy
    epsilon = guarantee({plan.event: rounds}, privacy.delta, privacy.accountant).epsilon
    return BudgetShare(part, rounds, plan.event, epsilon, plan.noise_multiplier)


def _fewer_aborts() -> str:
    """Returns advice on making aborts less frequent, or independent of the sampled clients."""
    return (
        "raise cohort.size or secure.capacity, lower secure.admitted, secure.threshold, "
        "secure.minimum or cohort.dropout, or use a sampler without a secret cohort: "
        f"cohort.sampler = {draws_of(Gaussian, Separated)}"
    )
