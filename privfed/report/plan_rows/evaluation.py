"""What people see of rounds in which clients evaluate, and of an early end, before a run begins."""

from __future__ import annotations

from privfed.plan.budget_shares import budget_shares
from privfed.plan.plan import Plan
from privfed.run.forecast import Forecast
from privfed.words import ceiling


def evaluation_rows(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """What clients measure, how often, and what each part of the run would spend alone."""
    config = plan.config
    pairs: dict[str, str] = {}
    if plan.evaluation is not None:
        every, keys = config.evaluation_rounds.every, config.evaluation
        groups = f", by {keys.group}" if keys.group else ""
        models = ", each of its own model" if keys.personal else ""
        noise = plan.evaluation.noise_multiplier
        noised = "" if noise is None else f"; noise multiplier {ceiling(noise)}"
        pairs["evaluation"] = (
            f"by clients{models}, every {every} rounds: {', '.join(keys.measures)}{groups}, by "
            f"{plan.evaluation.config.sampler.size} expected{noised}"
        )
    if forecast.half_widths and plan.mechanism.private:
        widths = (f"{name} ± {width:.2g}" for name, width in forecast.half_widths.items())
        pairs["intervals"] = (
            f"noise will leave about {', '.join(widths)} at {config.evaluation.confidence:.0%}"
        )
    if plan.evaluation is not None and plan.mechanism.private:
        pairs["parts"] = "alone, " + ", ".join(
            f"{share.part} ({share.rounds} of the rounds) would spend ε = {ceiling(share.epsilon)}"
            for share in budget_shares(plan)
        )
    if config.stop.patience:
        by = config.stop.by or "the first measure"
        pairs["stop"] = f"after {config.stop.patience} evaluations without a better one, by {by}"
    return pairs
