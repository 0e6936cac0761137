"""Combinations of parts that have no proof, or cannot be: each with its reason.

A reason rests on what the parts declare, never on what they are called, and says what would work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from privfed.config.config import Config
from privfed.plan.refusals.attacks import attack_refusals
from privfed.plan.refusals.canaries import canary_refusals
from privfed.plan.refusals.choice import choice_refusals
from privfed.plan.refusals.client_states import client_state_refusals
from privfed.plan.refusals.compression import compression_refusals
from privfed.plan.refusals.draws import draw_by_sizes, secret_slots, unproven_draw
from privfed.plan.refusals.evaluation import evaluation_refusals
from privfed.plan.refusals.joint_noise import joint_noise_refusals
from privfed.plan.refusals.objectives import objective_refusals
from privfed.plan.refusals.partial_models import partial_model_refusals
from privfed.plan.refusals.rules import rule_refusals
from privfed.plan.refusals.run_files import (
    ledger_heads_that_can_be_remade,
    measured_precision_of_a_seeded_run,
    measures_lost_on_resume,
)
from privfed.plan.refusals.schedules import rates_of_zero
from privfed.plan.refusals.secure_sums import secure_sum_refusals
from privfed.plan.refusals.silos import silo_refusals
from privfed.plan.refusals.sites import site_refusals
from privfed.plan.refusals.stragglers import nobody_to_drop, nothing_to_shorten
from privfed.plan.refusals.user_privacy import (
    adaptive_clip_of_absent_clients,
    unproven_objective,
    weights_by_private_sizes,
)

_IN_ORDER: tuple[Callable[[Config], Iterator[str]], ...] = (
    unproven_draw,
    ledger_heads_that_can_be_remade,
    measured_precision_of_a_seeded_run,
    rule_refusals,
    attack_refusals,
    compression_refusals,
    client_state_refusals,
    partial_model_refusals,
    silo_refusals,
    rates_of_zero,
    objective_refusals,
    unproven_objective,
    measures_lost_on_resume,
    nothing_to_shorten,
    adaptive_clip_of_absent_clients,
    nobody_to_drop,
    draw_by_sizes,
    weights_by_private_sizes,
    secret_slots,
    joint_noise_refusals,
    secure_sum_refusals,
    site_refusals,
    canary_refusals,
    choice_refusals,
    evaluation_refusals,
)


def refusals(config: Config) -> Iterator[str]:
    """Why this combination of parts has no proof, or cannot be: one reason each."""
    for reasons in _IN_ORDER:
        yield from reasons(config)
