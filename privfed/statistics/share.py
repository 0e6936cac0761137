"""What a description may spend, where the run file states its share of the variance budget."""

from __future__ import annotations

import math
from collections import Counter

from accounting.errors import AccountingError
from accounting.events import Event, Spending
from accounting.guarantee import guarantee
from privfed.config.assembly import assembled
from privfed.config.config import Config, Raw
from privfed.errors import Refused
from privfed.plan.evaluation_cost import EvaluationCost, evaluation_cost, variance_weight
from privfed.plan.round_cost import RoundCost, round_cost

_ABOUT_COST = ("run", "cohort", "privacy", "secure", "evaluation", "budget", "aggregation")


def epsilon_of_share(raw: Raw, described: Config) -> float:
    """The epsilon that the description `described` spends alone as `budget.statistics` has it.

    Its noise is solved for together with that of the training of the same run file, `raw`, and of
    rounds that evaluate, so that all of them spend privacy.epsilon: with s its share, e that of
    evaluation and w the `variance_weight` of a round,
    z_D / z = sqrt(w_D (1 - s) (1 - e) / (s w (T - E))). What is then charged is its own event, and
    training, which counts it, is solved for anew. Raises `Refused`.
    """
    config = _costs(raw)
    privacy, cost, beside = config.privacy, round_cost(config), evaluation_cost(config)
    description = round_cost(described)
    ratio = _ratio(config, cost, beside, description)

    def event(z: float) -> Event:
        return description.event(z * ratio)

    def besides(z: float) -> Spending:
        return Counter({event(z): 1}) + Counter(beside.spending(z) if beside else {})

    training = config.run.rounds - (beside.count if beside else 0)
    try:
        z = cost.solve(
            training,
            privacy.epsilon or 0.0,
            privacy.delta,
            privacy.accountant,
            besides=besides,
        )
        return guarantee({event(z): 1}, privacy.delta, privacy.accountant).epsilon
    except AccountingError as error:
        raise Refused(f"budget.statistics: {error}") from error


def _costs(raw: Raw) -> Config:
    """A run that costs what training by `raw` does. Raises `Refused` for what has no share."""
    about = {name: section for name, section in raw.items() if name in _ABOUT_COST}
    config = assembled({**about, "data": {"clients": raw.get("data", {}).get("clients", 0)}})
    if not config.budget.statistics:
        raise Refused(
            "--epsilon is missing: what this release may cost, as 0.5; or set budget.statistics, "
            "its share of what the run file may spend",
            key="epsilon",
        )
    if config.privacy.epsilon in (None, math.inf) or config.shared_noise:
        raise Refused(
            "budget.statistics is a share of privacy.epsilon, of noise that does not depend on a "
            "message's length; say what this release may cost: --epsilon",
            key="budget.statistics",
        )
    return config


def _ratio(
    config: Config, cost: RoundCost, beside: EvaluationCost | None, description: RoundCost
) -> float:
    """The noise multiplier of the description over that of training."""
    share, evaluations = config.budget.statistics, beside.count if beside else 0
    left = (1 - share) * (1 - (config.budget.evaluation if beside else 0.0))
    weights = [variance_weight(each.witness) for each in (description, cost)]
    return math.sqrt(weights[0] * left / (share * weights[1] * (config.run.rounds - evaluations)))
