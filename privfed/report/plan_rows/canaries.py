"""What people see of the canaries of a plan: what they cost, and what they would notice."""

from __future__ import annotations

import math

from accounting.empirical.verdicts import REFUTED_BELOW
from accounting.events import ADD_REMOVE, REPLACE_ONE
from privfed.auditing.canaries.coins import canaries_drawn, canaries_sending, takes_places
from privfed.auditing.canaries.power import Power
from privfed.core.text import ceiling
from privfed.plan.plan import Plan
from privfed.run.forecast import Forecast

_SHOWN = (0.5, 0.25, 0.1)
"""The shares of noise that are told of in a line."""
_TOO_LOUD = 0.05
"""The part by which canaries may make noise louder before it is warned of."""


def canaries_row(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """How many canaries there are, and how much louder they make the noise; nothing without."""
    count, relation = plan.config.audit.canaries, plan.event.relation
    if not count:
        return {}
    sending = canaries_sending(plan)
    tails = _tails(relation, opposite=forecast.canaries is None)
    words = f"{count}, of which half {tails}, {sending:.3g} in a cohort"
    words += " in the places of clients" if takes_places(plan.cost.witness) else ""
    if not forecast.noise or not forecast.signal:
        return {"canaries": words}
    louder = _louder(plan, forecast) - 1
    advice = "; WARNING: use fewer, or the model will suffer" if louder > _TOO_LOUD else ""
    measured = _measured(forecast)
    return {"canaries": f"{words}: noise is {louder:.1%} louder{measured}{advice}"}


def _measured(forecast: Forecast) -> str:
    """How that is known of canaries that train: by others like them, at the start."""
    if forecast.canaries is None or not forecast.signal:
        return ""
    part = forecast.canaries.norm / forecast.signal
    return f" (made-up ones like them send {part:.0%} of the clip at the start)"


def power_row(power: Power) -> dict[str, str]:
    """What the canaries would notice, and how many it takes to refute the claim."""
    return {"power": f"{power_in_words(power)}. {fewest_in_words(power)}"}


def power_in_words(power: Power) -> str:
    """With which probability canaries notice less noise than is charged."""
    noticed = [fault for fault in power.noticed if fault.share in _SHOWN]
    if not noticed:
        return "unknown, as the mechanism draws no weaker noise"
    first, *others = noticed
    further = "".join(
        f"; {fault.share:g} of it ({fault.epsilon:.3g}): {fault.doubted:.0%}, {fault.refuted:.0%}"
        for fault in others
    )
    return (
        f"at best, were {first.share:g} of the charged noise drawn (a true ε of "
        f"{first.epsilon:.3g}), the claim would be doubted at {power.confidence:.0%} with "
        f"probability {first.doubted:.0%}, and refuted at p < 1e-6 with {first.refuted:.0%}"
        + further
    )


def fewest_in_words(power: Power) -> str:
    """How many canaries it takes to refute the claim, whatever is wrong."""
    if power.slack >= REFUTED_BELOW:
        return (
            f"No number of canaries refutes ε = {ceiling(power.epsilon)} at p < 1e-6: that a sum "
            "aborts for all to see, or that noise is drawn nearly exactly, is charged with a "
            f"probability of {power.slack:.1g}, and with that anything may be shown"
        )
    if power.fewest is None:
        return f"No number of canaries that fits refutes ε = {ceiling(power.epsilon)}"
    warning = "WARNING: these are too few. " if power.canaries < power.fewest else ""
    return (
        f"{warning}To refute ε = {ceiling(power.epsilon)} takes at least {power.fewest:,}, of "
        "which every coin is guessed right"
    )


def _tails(relation: str, opposite: bool) -> str:
    """What the half does whose coins are tails; under add/remove what the others do."""
    if relation == ADD_REMOVE:
        return "enter"
    return "send the opposite" if relation == REPLACE_ONE and opposite else "send zero"


def _louder(plan: Plan, forecast: Forecast) -> float:
    """The noise with canaries, over that without.

    Clients who add noise themselves are more by those drawn; where these take places, the sum has
    fewer rows of clients, beside which the same noise is louder.
    """
    assert forecast.noise is not None
    assert forecast.signal is not None
    share = canaries_drawn(plan) / forecast.cohort
    sending = canaries_sending(plan)
    total = forecast.signal * math.sqrt(sending)  # random directions at the clip
    if forecast.canaries:
        total = forecast.canaries.total(sending)
    norm = total / forecast.cohort
    if takes_places(plan.cost.witness):
        return math.hypot(1.0, norm / forecast.noise) / (1.0 - share)
    mechanism, by_clients = plan.mechanism, not plan.cost.limits.sites
    each_adds = by_clients and mechanism.trust in ("sum", "client") and not mechanism.layered
    return math.hypot(math.sqrt(1.0 + share) if each_adds else 1.0, norm / forecast.noise)
