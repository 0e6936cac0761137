"""What each part of a run would spend by itself; a budget holds their composition alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from accounting.events import Event
from accounting.guarantee import guarantee
from privfed.plan.plan import Plan


@dataclass(frozen=True)
class BudgetShare:
    """One part of a run: `rounds` of this `event`, and the `epsilon` of these alone.

    `noise_multiplier` is None where nothing is protected.
    """

    part: str
    rounds: int
    event: Event
    epsilon: float
    noise_multiplier: float | None

    def to_json(self) -> dict[str, Any]:
        """The object under "parts" that `privfed check --json` prints."""
        return {
            "rounds": self.rounds,
            "event": self.event.to_json(),
            "epsilon": self.epsilon,
            "noise_multiplier": self.noise_multiplier,
        }


def budget_shares(plan: Plan) -> tuple[BudgetShare, ...]:
    """The parts of the run of `plan`: what trains, and what evaluates, where clients do."""
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
