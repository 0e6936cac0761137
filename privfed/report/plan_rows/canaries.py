"""What canaries cost learning, before anybody trains: what they send is noise to it."""

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
    drawn, opposite = _in_a_cohort(plan), relation == REPLACE_ONE and not forecast.canaries
    sending = drawn if opposite else drawn / 2
    words = f"{count}, of which half {_tails(relation, opposite)}, {sending:.3g} in a cohort"
    words += " in the places of clients" if _takes_places(plan) else ""
    if not forecast.noise or not forecast.signal:
        return {"canaries": words}
    louder = _louder(plan, forecast, drawn, sending) - 1
    advice = "; WARNING: use fewer, or the model will suffer" if louder > _TOO_LOUD else ""
    measured = _measured(forecast)
    return {"canaries": f"{words}: noise is {louder:.1%} louder{measured}{advice}"}


def _measured(forecast: Forecast) -> str:
    """How that is known of canaries that train: by others like them, at the start."""
    if forecast.canaries is None or not forecast.signal:
        return ""
    part = forecast.canaries.norm / forecast.signal
    return f" (made-up ones like them send {part:.0%} of the clip at the start)"


def _tails(relation: str, opposite: bool) -> str:
    """What the half does whose coins are tails; under add/remove what the others do."""
    if relation == ADD_REMOVE:
        return "enter"
    return "send the opposite" if opposite else "send zero"


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
    sent = forecast.signal * math.sqrt(sending)  # random directions at the clip
    if forecast.canaries:
        sent = forecast.canaries.total(sending)
    rows = sent / forecast.cohort / forecast.noise
    if _takes_places(plan):
        return math.hypot(1.0, rows) / (1.0 - drawn / forecast.cohort)
    mechanism, by_clients = plan.mechanism, not plan.cost.limits.sites
    each_adds = by_clients and mechanism.trust in ("sum", "client") and not mechanism.layered
    return math.hypot(math.sqrt(1.0 + drawn / forecast.cohort) if each_adds else 1.0, rows)
