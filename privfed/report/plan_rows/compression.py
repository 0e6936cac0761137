"""A row of a plan on how updates are compressed."""

from __future__ import annotations

from privfed.plan.plan import Plan
from privfed.run.forecast import Forecast


def compression_row(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """What is sent of an update, and what the clip is for; nothing where all of it is sent."""
    compression, name = plan.config.compression, plan.config.names["compression"]
    if not compression.compresses:
        return {}
    sent = f"{name}: {forecast.message:,} of {forecast.parameters:,} numbers"
    if not compression.linear:
        sent = f"{name}: each row is written down by itself"
    if compression.exchanges > 1:
        sent += f", {compression.exchanges} times"
    if not plan.mechanism.private:
        return {"compression": sent}
    shorter = f"{forecast.shortening:.2g} times " if forecast.shortening < 1.0 else ""
    return {"compression": f"{sent}; clipped as it is sent, about {shorter}as long as an update"}
