"""What people see of noise that pairs of clients share: who adds what, and whom it counts on."""

from __future__ import annotations

from dataclasses import replace

from accounting.events import CHANGE
from accounting.guarantee import guarantee
from accounting.noises import same_cohort
from privfed.plan.plan import Plan
from privfed.privacy.joint_noise import noised_jointly
from privfed.words import ceiling


def pairs_row(plan: Plan) -> dict[str, str]:
    """What each client adds, and what holds with how many colluders; none where none is shared."""
    if not noised_jointly(plan.mechanism):
        return {}
    noise, honest = plan.mechanism.noise(), plan.mechanism.honest
    colluding = noise.clients - honest
    alone = same_cohort(plan.mechanism.alone / CHANGE[plan.event.relation], plan.cost.exchanges)
    privacy, rounds = plan.config.privacy, plan.config.run.rounds
    left = guarantee({replace(plan.event, release=alone): rounds}, privacy.delta)
    return {
        "pairs": (
            f"each client adds a deviation of {noise.alone:.3g} of its own, and {noise.shared:.3g} "
            f"with each of {noise.clients - 1} others, which cancels and is taken to be as good as "
            "random (a computational assumption, which ε leaves out); ε holds against the server "
            f"with up to {colluding} of them, and were all others to work with it, this run alone "
            f"would have ε = {ceiling(left.epsilon)}"
        )
    }
