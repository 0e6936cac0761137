"""What all rounds of a run spend together, as calibration, plan and choice count it.

Here alone stands which releases a run makes beside its rounds.
"""

from __future__ import annotations

from accounting.calibration import noise_multiplier
from accounting.events import Event, Spending, best_of
from privfed.config.config import Config
from privfed.plan.round_cost import RoundCost


def run_spending(event: Event, rounds: int) -> Spending:
    """What one run by itself spends: `rounds` times the `event` of a round."""
    return {event: rounds}


def spending_of(config: Config, event: Event) -> Spending:
    """The same of the run `config`; where it is chosen among others, the choice as one event."""
    alone = run_spending(event, config.run.rounds)
    return {best_of(alone, config.chosen.repetitions): 1} if config.chosen else alone


def solved_noise(config: Config, cost: RoundCost, earlier: Spending) -> float:
    """The least noise at which the run spends its budget, after `earlier`.

    Raises `AccountingError`.
    """
    privacy, rounds = config.privacy, config.run.rounds
    assert privacy.epsilon is not None
    if config.chosen is None:
        return cost.solve(rounds, privacy.epsilon, privacy.delta, privacy.accountant, earlier)
    repetitions = config.chosen.repetitions

    def choice(z: float) -> Event:
        return best_of(run_spending(cost.event(z), rounds), repetitions)

    return noise_multiplier(choice, 1, privacy.epsilon, privacy.delta, privacy.accountant, earlier)
