"""Advice on a run that is planned: what would leave less noise on its model for its budget."""

from __future__ import annotations

import math
from collections.abc import Collection

from privfed.config.config import Raw
from privfed.errors import Refused
from privfed.plan.advice.advice import Advice, alternative_of, compared, keys_to_compare, uneven
from privfed.plan.advice.assumptions import PROMISES
from privfed.plan.plan import Plan
from privfed.privacy.solved_for_run import SolvedForRun


def refuse_incomparable(plan: Plan) -> None:
    """Raises `Refused` where nothing can be advised on `plan`, with the reason."""
    config = plan.config
    if not plan.mechanism.private or plan.mechanism.trust != "server":
        why = "compares noise that the server adds, and this run's is not"
    elif plan.budget is None or plan.budget == math.inf:
        why = "compares what one ε takes, and this run has no budget: set privacy.epsilon"
    elif config.apart:
        why = "is about draws of one server, and here sites elsewhere draw their own clients"
    elif config.chosen:
        why = "is about a run that stands alone, and this one is chosen among others"
    else:
        return
    raise Refused(f"--advise {why}")


def comparable(plan: Plan) -> bool:
    """Whether anything can be advised on `plan`."""
    try:
        refuse_incomparable(plan)
    except Refused:
        return False
    return True


def advice_on_run(plan: Plan, promises: Collection[str] = tuple(PROMISES)) -> Advice:
    """The alternatives to what `plan` draws and adds that are not refused with its other parts.

    Those that need more than the `promises` that are given have no number. Raises `Refused`.
    """
    refuse_incomparable(plan)
    config, yours = plan.config, alternative_of(plan, {})
    if yours is None:
        raise Refused("--advise: this run's noise is correlated over rounds, and how is not known")
    clients, size = config.data.clients, config.sampler.size
    others = [
        keys
        for keys in keys_to_compare(clients, size, max(plan.training_rounds, 1))
        if not _configured(plan, keys)
    ]
    adaptive = plan.mechanism.adaptive
    base = _unsolved(plan)
    left_out = uneven(clients, size)
    return compared(base, others, promises, plan.before, yours, adaptive, left_out)


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
