"""What a run's canaries would notice, and how likely, told before the run: their power."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from accounting.empirical.claimed_profile import claimed_profile
from accounting.empirical.power import fewest_refuting, power, refuting_guesses
from accounting.empirical.tradeoff import ClaimedCurve
from accounting.empirical.two_sample import REFUTED_BELOW
from accounting.events import Spending
from accounting.guarantee import guarantee
from privfed.errors import Refused
from privfed.plan.plan import Plan

_SHARES = (0.7, 0.5, 0.35, 0.25, 0.1, 0.03)
"""The shares of the charged noise that a faulty run might really have drawn."""
_NOTHING = (0.0, 1.0)
"""The point of a profile that claims nothing: all is told apart."""
_STATISTICS = 2
"""Those who see every release are tested, and those who see the final model."""


@dataclass(frozen=True)
class Noticed:
    """The probability that canaries notice noise of a `share` of what is charged.

    It truly costs `epsilon`. `doubted`: the claim is refuted at the run's confidence, as one of an
    honest run may be; the audit says so. `refuted`: it is at p < 1e-6, and the audit fails.
    """

    share: float
    epsilon: float
    doubted: float
    refuted: float


@dataclass(frozen=True)
class Power:
    """What `canaries` would notice of less noise, from more of it to less.

    `fewest` of them can refute the claim of `epsilon`, were all guesses right; None: hardly any.
    """

    canaries: int
    confidence: float
    epsilon: float
    fewest: int | None
    noticed: tuple[Noticed, ...]

    def to_json(self) -> dict[str, Any]:
        """The object under "power" in `privfed check --json`."""
        return asdict(self)


def power_of(plan: Plan, parameters: int) -> Power | None:
    """The power of the canaries of `plan`, for a model of so many `parameters`; None without any.

    At best: each is told apart as well as the whole profile of a run allows whose noise is that on
    it, by who sees every release, and that is the faulty noise and the other canaries of its
    cohorts. It is simulated 400 times from a fixed seed, so that a report says later what was said
    before the run.
    """
    audit = plan.config.audit
    privacy = plan.config.privacy
    claims = list(claimed_profile(plan.spent, privacy.delta, privacy.accountant))
    if not audit.canaries or not claims or plan.noise_multiplier is None:
        return None
    curve = ClaimedCurve(claims)
    levels = [
        refuting_guesses(audit.canaries, curve, level, _STATISTICS)
        for level in (1 - audit.confidence, REFUTED_BELOW)
    ]
    noticed = []
    for share, epsilon, true in _faults(plan, parameters):
        rates = [power(audit.canaries, each, true, np.random.default_rng(0)) for each in levels]
        noticed.append(Noticed(share, epsilon, *rates))
    fewest = fewest_refuting(curve, REFUTED_BELOW, _STATISTICS)
    return Power(audit.canaries, audit.confidence, claims[0][0], fewest, tuple(noticed))


def _faults(plan: Plan, parameters: int) -> Iterator[tuple[float, float, ClaimedCurve]]:
    """Shares of the noise, what they truly cost, and by which curve they leave a canary apart.

    Nothing of those that the mechanism cannot draw.
    """
    config, charged = plan.config, plan.noise_multiplier or 0.0
    entered = config.sampler.size / config.data.clients * config.audit.canaries / 2
    for share in _SHARES:
        try:
            true = _spending(plan, share * charged)
            seen = _spending(plan, math.hypot(share * charged, math.sqrt(entered / parameters)))
        except Refused:
            continue
        delta = config.privacy.delta
        claims = list(claimed_profile(seen, delta)) or [_NOTHING]
        yield share, guarantee(true, delta).epsilon, ClaimedCurve(claims)


def _spending(plan: Plan, noise_multiplier: float) -> Spending:
    """What all rounds of `plan` would be charged with this noise."""
    mechanism = plan.mechanism.at(noise_multiplier)
    event = replace(plan.algorithm(), mechanism=mechanism).event(1)
    return {event: plan.config.run.rounds}
