"""What a run spends by itself, or by being chosen among others; and the least noise for either."""

from __future__ import annotations

from collections import Counter

from accounting.calibration import noise_multiplier
from accounting.events import Event, Spending, best_of
from privfed.config.config import Config
from privfed.plan.evaluation_cost import EvaluationCost
from privfed.plan.round_cost import RoundCost


def spending_of(config: Config, alone: Spending) -> Spending:
    """What the run `config` spends, all of whose rounds are charged `alone`.

    Where it is chosen among others, that is the choice, as one event.
    """
    return {best_of(alone, config.chosen.repetitions): 1} if config.chosen else alone


def solved_noise(
    config: Config, cost: RoundCost, beside: EvaluationCost | None, earlier: Spending
) -> float:
    """The least noise at which the run spends its budget, after `earlier`.

    Raises `AccountingError`.
    """
    privacy, besides = config.privacy, beside.spending if beside else None
    training = config.run.rounds - (beside.count if beside else 0)
    asked = (privacy.epsilon or 0.0, privacy.delta, privacy.accountant, earlier)
    if config.chosen is None:
        return cost.solve(training, *asked, besides)
    repetitions = config.chosen.repetitions

    def choice(z: float) -> Event:
        alone = Counter({cost.event(z): training}) + Counter(besides(z) if besides else {})
        return best_of(alone, repetitions)

    return noise_multiplier(choice, 1, *asked)
