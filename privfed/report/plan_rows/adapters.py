"""What a plan says of low-rank adaptation: how little is trained and sent, and what is doubtful."""

from __future__ import annotations

from privfed.plan.plan import Plan
from privfed.run.forecast import Forecast
from privfed.words import size_of


def adapter_rows(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """Numbers that are trained and sent, and a client's bytes, beside those of the whole model."""
    lora = plan.config.start.lora
    if lora is None or forecast.without_adapters is None:
        return {}
    trained, model = forecast.parameters, forecast.without_adapters
    factors = "B alone (A stays as drawn)" if lora.freeze_a else "A and B"
    pairs = {
        "adapters": (
            f"rank {lora.rank}, {factors}: {trained:,} numbers are trained and sent beside the "
            f"{model:,} of the model, {size_of(4 * trained)} a client for {size_of(4 * model)}, "
            f"{model / trained:.3g} times fewer"
        )
    }
    if not plan.config.starts_from:
        pairs["base"] = (
            "nothing has trained the weights that are adapted, and they stay as they are drawn; "
            "start from public ones (model.init)"
        )
    if plan.mechanism.private and not lora.freeze_a:
        pairs["factors"] = (
            "noise falls on A and on B, and on their product squared; with "
            "model.lora.freeze_a = true it does not, and half as much is sent"
        )
    return pairs
