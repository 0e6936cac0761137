"""What an adversary sees of a client's update: raw, clipped, noised, or in a sum of several.

Noise is looked at as the adversary does whom epsilon is about: who reads the released aggregate,
knows all other clients' updates and subtracts them. Where clients add their own noise it is the
server, which needs to know nobody.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from accounting.errors import AccountingError
from privfed.errors import Refused
from privfed.plan.plan import Plan
from privfed.privacy.clipping import clip_rows

MANY, FEW = 10, 2
"""How many clients the secure sums hold that are looked at, beside a whole cohort."""
_READER = "a server that reads updates"
_LOOSE = (1e6, 1e5, 1e3)
"""Budgets that are far too large to protect anybody."""


@dataclass(frozen=True)
class View:
    """The mean of `clients` updates, each clipped, plus noise of `deviation`, as `who` sees it."""

    name: str
    who: str
    clients: int = 1
    clip: float = math.inf
    deviation: float = 0.0
    epsilon: float | None = None

    def observed(self, updates: Tensor, generator: torch.Generator) -> Tensor:
        """What is observed `[d]` of the first `clients` of `updates` `[n, d]`."""
        rows = updates[: self.clients]
        if self.clip < math.inf:
            rows = clip_rows(rows, self.clip).rows
        noise = torch.randn(rows.shape[1], generator=generator, dtype=rows.dtype)
        return rows.mean(0) + self.deviation * noise

    def keeps_length(self, update: Tensor) -> bool:
        """Whether the clip leaves an update `[d]` as long as it is."""
        return float(torch.linalg.vector_norm(update)) <= self.clip


def views(plan: Plan, epsilons: Sequence[float], clients: int) -> list[View]:
    """The views from no protection to the most, for sums over at most `clients` clients.

    `epsilons` are budgets for all of the run's rounds at its delta. Raises `Refused`.
    """
    clip = plan.config.mechanism.clip if plan.mechanism.private else math.inf
    levels = [View("as sent", _READER)]
    if plan.mechanism.private:
        levels.append(View(f"clipped to {clip:g}", _READER, clip=clip))
        levels += [_noised(plan, epsilon, clip) for epsilon in sorted(set(epsilons), reverse=True)]
    elif epsilons:
        raise Refused(
            "--epsilon is given, but privacy.mechanism is 'none': there is no noise to calibrate; "
            "leave it out, or set privacy.mechanism = 'gaussian'"
        )
    cohort = plan.config.sampler.size
    for count in sorted({FEW, MANY, cohort}):
        if 1 < count <= min(cohort, clients):
            who = "a server that sees sums alone"
            levels.append(View(f"sum of {count} clients", who, count, clip))
    return levels


def _noised(plan: Plan, epsilon: float, clip: float) -> View:
    """One clipped update under the noise with which all of the run's rounds spend `epsilon`."""
    local = plan.mechanism.trust == "client"
    who = _READER if local else "a reader who knows all other updates"
    return View(f"ε = {epsilon:,.10g}", who, 1, clip, noise_for(plan, epsilon) * clip, epsilon)


def noise_for(plan: Plan, epsilon: float) -> float:
    """The deviation on one round's sum, in clips, with which all rounds spend `epsilon`.

    Raises `Refused`.
    """
    config, sampler = plan.config, plan.config.sampler
    privacy = config.privacy
    try:
        multiplier = plan.cost.solve(
            plan.training_rounds,
            epsilon,
            privacy.delta,
            privacy.accountant,
            plan.before.spending,
            plan.beside.spending if plan.beside else None,
        )
    except AccountingError as error:
        raise Refused(f"--epsilon {epsilon:g}: {error}") from error
    local = plan.mechanism.trust == "client"
    if (local and config.by_sites) or plan.mechanism.joint:  # of a site's sum; of a row, beside all
        return multiplier
    return plan.mechanism.at(multiplier).noise_on_update(1 if local else sampler.size)


def default_epsilons(plan: Plan) -> tuple[float, ...]:
    """Budgets to look through: far too large ones, and the run's budget; none without noise."""
    if not plan.mechanism.private:
        return ()
    budget = plan.budget or plan.guarantee.epsilon
    return (*_LOOSE, *((budget,) if 0 < budget < min(_LOOSE) else ()))
