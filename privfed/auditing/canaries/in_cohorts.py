"""How many canaries cohorts have: what they cost learning, and each other, follows from that."""

from __future__ import annotations

from accounting.events import REPLACE_ONE
from privfed.plan.plan import Plan
from privfed.sampling.cohort import Witness


def takes_places(drawn: Witness) -> bool:
    """Whether cohorts have so many places and no more, which canaries share with clients."""
    return drawn.shares_places and not drawn.random


def canaries_drawn(plan: Plan) -> float:
    """How many canaries are expected in a cohort, were all of them in the population."""
    config = plan.config
    count, clients = config.audit.canaries, config.data.clients
    population = clients + count if takes_places(plan.cost.witness) else clients
    return count * config.sampler.size / population


def canaries_sending(plan: Plan) -> float:
    """How many of them are expected to send a row: half of them, or under replace-one all.

    Of those that train, the half with tails holds nothing.
    """
    drawn, train = canaries_drawn(plan), plan.config.audit.by_inputs
    return drawn if plan.event.relation == REPLACE_ONE and not train else drawn / 2
