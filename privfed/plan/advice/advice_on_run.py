"""Advice on a run that is planned: what would leave less noise on its model for its budget."""

from __future__ import annotations

import math

from privfed.config.config import Raw
from privfed.plan.advice.advice import Advice, compared
from privfed.plan.advice.alternative import alternative_of
from privfed.plan.advice.candidates import candidates
from privfed.plan.plan import Plan
from privfed.privacy.solved_for_run import SolvedForRun


def advice_on_run(plan: Plan) -> Advice | None:
    """The alternatives to what `plan` draws and adds, that are not refused with its other parts.

    None where there is no budget to compare by, where the noise is not the server's, where sites
    elsewhere are asked, and where a run is one of several to choose from.
    """
    config = plan.config
    central = plan.mechanism.private and plan.mechanism.trust == "server"
    budgeted = plan.budget is not None and plan.budget < math.inf
    if not central or not budgeted or config.apart or config.chosen:
        return None
    yours = alternative_of(plan, {})
    if yours is None:
        return None
    clients, size = config.data.clients, config.sampler.size
    others = [
        keys
        for keys in candidates(clients, size, max(plan.training_rounds, 1))
        if not _configured(plan, keys)
    ]
    adaptive = plan.mechanism.adaptive
    return compared(_unsolved(plan), others, before=plan.before, yours=yours, adaptive=adaptive)


def _configured(plan: Plan, keys: dict[str, object]) -> bool:
    """Whether the run has these keys already."""
    values = plan.config.values()
    return all(values[key.split(".")[0]].get(key.split(".")[1]) == keys[key] for key in keys)


def _unsolved(plan: Plan) -> Raw:
    """The run's keys without the constants that its mechanism solved for."""
    raw, mechanism = plan.config.raw(), plan.config.mechanism
    if isinstance(mechanism, SolvedForRun):
        for key in mechanism.solution():
            raw["privacy"].pop(key, None)
    return raw
