"""The reasons why combinations of parts have no proof, or are impossible.

A reason is a message, also called a refusal. It depends on the declarations of the parts, never on
their names, and states an alternative. A function yields nothing if it has no reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from privfed.config.config import Config
from privfed.plan.refusals.clients import (
    attack_refusals,
    client_state_refusals,
    no_stragglers_to_drop,
    nothing_to_shorten,
    objective_refusals,
    partial_model_refusals,
    rates_of_zero,
)
from privfed.plan.refusals.rules import rule_refusals
from privfed.plan.refusals.run_file import (
    choice_refusals,
    evaluation_refusals,
    ledger_heads_that_can_be_remade,
    measured_precision_of_a_seeded_run,
    measures_lost_on_resume,
)
from privfed.plan.refusals.sampling import (
    adaptive_clip_of_absent_clients,
    canary_refusals,
    draw_by_sizes,
    earlier_models,
    secret_slots,
    unproven_draw,
    unproven_objective,
    weights_by_private_sizes,
)
from privfed.plan.refusals.sites import silo_refusals, site_refusals
from privfed.plan.refusals.sums import (
    compression_refusals,
    joint_noise_refusals,
    secure_sum_refusals,
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
    no_stragglers_to_drop,
    draw_by_sizes,
    weights_by_private_sizes,
    earlier_models,
    secret_slots,
    joint_noise_refusals,
    secure_sum_refusals,
    site_refusals,
    canary_refusals,
    choice_refusals,
    evaluation_refusals,
)


def refusals(config: Config) -> Iterator[str]:
    """Yields the reasons why this combination of parts has no proof, or is impossible."""
    for reasons in _IN_ORDER:
        yield from reasons(config)
