"""What canaries cost learning, before anybody trains: random directions are noise to it."""

from __future__ import annotations

import math

from accounting.events import ADD_REMOVE, REPLACE_ONE
from privfed.plan.plan import Plan
from privfed.run.forecast import Forecast

_TOO_LOUD = 0.05
"""The part by which canaries may make noise louder before it is warned of."""


def canaries_row(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """How many canaries there are, and how much louder they make the noise; nothing without."""
    count, relation = plan.config.audit.canaries, plan.event.relation
    if not count:
        return {}
    drawn = _in_a_cohort(plan)
    sending = drawn if relation == REPLACE_ONE else drawn / 2
    words = f"{count}, of which half {_tails(relation)}, {sending:.3g} in a cohort"
    words += " in the places of clients" if _takes_places(plan) else ""
    if not forecast.noise or not forecast.signal:
        return {"canaries": words}
    louder = _louder(plan, forecast, drawn, sending) - 1
    advice = "; WARNING: use fewer, or the model will suffer" if louder > _TOO_LOUD else ""
    return {"canaries": f"{words}: noise is {louder:.1%} louder{advice}"}


def _tails(relation: str) -> str:
    """What the half does whose coins are tails; under add/remove what the others do."""
    return {ADD_REMOVE: "enter", REPLACE_ONE: "send the opposite"}.get(relation, "send zero")


def _takes_places(plan: Plan) -> bool:
    """Whether cohorts have so many places, which canaries share with clients."""
    return plan.cost.witness.shares_places and not plan.cost.witness.random


def _in_a_cohort(plan: Plan) -> float:
    """How many canaries are expected in a cohort, were all of them in the population."""
    config = plan.config
    count, clients = config.audit.canaries, config.data.clients
    population = clients + count if _takes_places(plan) else clients
    return count * config.sampler.size / population


def _louder(plan: Plan, forecast: Forecast, drawn: float, sending: float) -> float:
    """The noise with canaries, of which `sending` send rows in a cohort, over that without.

    Clients who add noise themselves are more by those `drawn`; where these take places, the sum has
    fewer rows of clients, beside which the same noise is louder.
    """
    assert forecast.noise is not None
    assert forecast.signal is not None
    rows = forecast.signal * math.sqrt(sending) / forecast.cohort / forecast.noise
    if _takes_places(plan):
        return math.hypot(1.0, rows) / (1.0 - drawn / forecast.cohort)
    mechanism, by_clients = plan.mechanism, not plan.cost.limits.sites
    each_adds = by_clients and mechanism.trust in ("sum", "client") and not mechanism.layered
    return math.hypot(math.sqrt(1.0 + drawn / forecast.cohort) if each_adds else 1.0, rows)
