"""What a run's canaries would notice, and how likely, told before the run: their power."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from accounting.documents import Encoded
from accounting.empirical.claimed_profile import claimed_profile, refutable_claims
from accounting.empirical.power import fewest_refuting, power, refuting_guesses
from accounting.empirical.tradeoff import ClaimedCurve
from accounting.empirical.verdicts import REFUTED_BELOW
from accounting.events import Spending
from accounting.guarantee import guarantee
from privfed.auditing.canaries.coins import canaries_sending
from privfed.core.errors import Refused
from privfed.plan.plan import Plan

_SHARES = (0.7, 0.5, 0.35, 0.25, 0.1, 0.03)
"""The shares of the charged noise that a faulty run might really have drawn."""
_POINTS = 15
"""At how many small deltas the profile of a faulty run is looked at."""
_NOTHING = (0.0, 1.0)
"""The point of a profile that claims nothing: all is told apart."""


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
class Power(Encoded):
    """What `canaries` would notice of less noise, from more of it to less.

    `fewest` of them can refute the claim of `epsilon`, were all guesses right; None: hardly any.
    `slack` is the total variation that the claim is charged beside it; from 1e-6 on nothing is
    ever refuted.
    """

    canaries: int
    confidence: float
    epsilon: float
    fewest: int | None
    slack: float
    noticed: tuple[Noticed, ...]


def power_of(plan: Plan, parameters: int) -> Power | None:
    """The power of the canaries of `plan`, for a model of so many `parameters`; None without any.

    At best: each sends a row at the clip, and is told apart as well as the whole profile of a run
    allows whose noise is that on it, by who sees every release, and that is the faulty noise and
    the other canaries of its cohorts. Who sees the final model only, by which alone canaries of
    inputs are scored, notices less. It is simulated 400 times from a fixed seed, so that a report
    says later what was said before the run.
    """
    audit, privacy = plan.config.audit, plan.config.privacy
    if not audit.canaries or plan.noise_multiplier is None:
        return None
    claims, slack = refutable_claims(plan.spent, privacy.delta, privacy.accountant)
    if not claims:
        return None
    curve, statistics = ClaimedCurve(claims), 1 if audit.by_inputs else 2
    levels = [
        refuting_guesses(audit.canaries, curve, max(level - slack, 0.0), statistics)
        for level in (1 - audit.confidence, REFUTED_BELOW)
    ]
    noticed = []
    for share, epsilon, true in _faults(plan, parameters):
        rates = [power(audit.canaries, each, true, np.random.default_rng(0)) for each in levels]
        noticed.append(Noticed(share, epsilon, *rates))
    fewest = fewest_refuting(curve, max(REFUTED_BELOW - slack, 0.0), statistics)
    return Power(audit.canaries, audit.confidence, claims[0][0], fewest, slack, tuple(noticed))


def _faults(plan: Plan, parameters: int) -> Iterator[tuple[float, float, ClaimedCurve]]:
    """Shares of the noise, what they truly cost, and by which curve they leave a canary apart.

    Nothing of those that the mechanism cannot draw.
    """
    config, charged = plan.config, plan.noise_multiplier or 0.0
    others, rows = canaries_sending(plan), _rows_of_noise(plan)
    for share in _SHARES:
        try:
            true = _spending(plan, share * charged)
            noise = math.hypot(share * charged * rows, math.sqrt(others / parameters))
            beside_others = _spending(plan, noise)
        except Refused:
            continue
        delta = config.privacy.delta
        claims = list(claimed_profile(beside_others, delta, points=_POINTS)) or [_NOTHING]
        yield share, guarantee(true, delta).epsilon, ClaimedCurve(claims)


def _rows_of_noise(plan: Plan) -> float:
    """The noise in what is released, over that which protects a client.

    It is more where each client adds its own to its row, and the claim is about that row.
    """
    each_row = plan.mechanism.trust == "client" and not plan.cost.limits.sites
    return math.sqrt(plan.config.sampler.size) if each_row else 1.0


def _spending(plan: Plan, noise_multiplier: float) -> Spending:
    """What all rounds of `plan` would be charged with this noise, slack aside: that is no noise."""
    mechanism = plan.mechanism.at(noise_multiplier)
    event = replace(plan.algorithm(), mechanism=mechanism).event(1)
    return {replace(event, slack=0.0): plan.config.run.rounds}
