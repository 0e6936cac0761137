"""What people see of the canaries of a plan: what they cost, and what they would notice."""

from __future__ import annotations

import math

from privfed.auditing.canaries.power import Power
from privfed.plan.plan import Plan
from privfed.run.forecast import Forecast
from privfed.words import ceiling

_SHOWN = (0.5, 0.25, 0.1)
"""The shares of noise that are told of in a line."""
_TOO_LOUD = 0.05
"""The part by which canaries may make noise louder before it is warned of."""


def canaries_row(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """How many canaries there are, and what they cost learning: random directions are noise."""
    count, config = plan.config.audit.canaries, plan.config
    if not count:
        return {}
    entered = config.sampler.size / config.data.clients * count / 2
    canaries = f"{count}, of which half enter, {entered:.3g} in a cohort"
    if not forecast.noise or not forecast.signal:
        return {"canaries": canaries}
    norm = forecast.signal * math.sqrt(entered) / forecast.cohort
    louder = math.hypot(1.0, norm / forecast.noise) - 1
    advice = "; WARNING: use fewer, or the model will suffer" if louder > _TOO_LOUD else ""
    return {"canaries": f"{canaries}: noise is {louder:.1%} louder{advice}"}


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
    if power.fewest is None:
        return f"No number of canaries that fits refutes ε = {ceiling(power.epsilon)}"
    warning = "WARNING: these are too few. " if power.canaries < power.fewest else ""
    return (
        f"{warning}To refute ε = {ceiling(power.epsilon)} takes at least {power.fewest:,}, of "
        "which every coin is guessed right"
    )
