"""Statistical power of the canary audit, computed before the run."""

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
from privfed.auditing.canaries.inclusion import canaries_sending
from privfed.core.errors import Refused
from privfed.plan.plan import Plan

_SHARES = (0.7, 0.5, 0.35, 0.25, 0.1, 0.03)
"""Fractions of the charged noise, in standard deviations, that a faulty run might have added."""
_POINTS = 15
"""Number of small deltas at which the profile of a faulty run is evaluated."""
_NOTHING = (0.0, 1.0)
"""The trivial point (epsilon 0, delta 1) of a privacy profile."""


@dataclass(frozen=True)
class Noticed:
    """The probability that canaries detect one fault: too small a standard deviation of the noise.

    Attributes:
      share: the noise's true standard deviation as a fraction of the charged one.
      epsilon: the true epsilon at that noise.
      doubted: probability that the claim is rejected at the run's confidence, which may also happen
        to a correct run; the audit reports it.
      refuted: probability that the claim is rejected at p < 1e-6; the audit then fails.
    """

    share: float
    epsilon: float
    doubted: float
    refuted: float


@dataclass(frozen=True)
class Power(Encoded):
    """The probability that `canaries` detect missing noise, for each of several faults (`noticed`).

    Attributes:
      fewest: number of canaries that could refute the claim of `epsilon` if all guesses were right;
        it exceeds the smallest such number by at most 1 %. None if 131,072 do not suffice.
      slack: the total variation charged in addition to the claim; if it is 1e-6 or more, no claim
        is ever refuted.
    """

    canaries: int
    confidence: float
    epsilon: float
    fewest: int | None
    slack: float
    noticed: tuple[Noticed, ...]


def power_of(plan: Plan, parameters: int) -> Power | None:
    """Returns the power of the canaries of `plan`; None without canaries, noise or a finite claim.

    The power is a best case. Each canary sends a row at the clipping norm, and is distinguished as
    well as the whole privacy profile allows, by an adversary that sees every release. The noise on
    a canary is the faulty noise plus the other canaries of its cohorts. An adversary that sees only
    the final model, the only adversary for canaries that train, detects less. The power is
    simulated 400 times from a fixed seed, so that a later report repeats the figures stated before
    the run.

    Args:
      plan: the plan of the run.
      parameters: number of parameters of the model.
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
        rates = power(audit.canaries, levels, true, np.random.default_rng(0))
        noticed.append(Noticed(share, epsilon, *rates))
    fewest = fewest_refuting(curve, max(REFUTED_BELOW - slack, 0.0), statistics)
    return Power(audit.canaries, audit.confidence, claims[0][0], fewest, slack, tuple(noticed))


def _faults(plan: Plan, parameters: int) -> Iterator[tuple[float, float, ClaimedCurve]]:
    """Yields fractions of the charged noise, each with its epsilon and a trade-off function.

    The trade-off function is that of a canary, for which the cohort's other canaries are further
    noise. Fractions at which the mechanism cannot sample noise are left out.
    """
    config, charged = plan.config, plan.noise_multiplier or 0.0
    others, rows = canaries_sending(plan), _rows_of_noise(plan)
    for share in _SHARES:
        try:
            true = _spending(plan, share * charged)
            noise = math.hypot(share * charged * rows, math.sqrt(others / parameters))
            with_other_canaries = _spending(plan, noise)
        except Refused:
            continue
        delta = config.privacy.delta
        claims = list(claimed_profile(with_other_canaries, delta, points=_POINTS)) or [_NOTHING]
        yield share, guarantee(true, delta).epsilon, ClaimedCurve(claims)


def _rows_of_noise(plan: Plan) -> float:
    """Returns the ratio of the noise in a release to the noise that protects a client.

    It is the square root of the cohort size if each client adds noise to its own row and sums are
    not over sites, else 1.
    """
    each_row = plan.mechanism.trust == "client" and not plan.cost.limits.sites
    return math.sqrt(plan.config.sampler.size) if each_row else 1.0


def _spending(plan: Plan, noise_multiplier: float) -> Spending:
    """Returns the charges of all rounds of `plan` at another `noise_multiplier` and slack 0."""
    mechanism = plan.mechanism.at(noise_multiplier)
    event = replace(plan.algorithm(), mechanism=mechanism).event(1)
    return {replace(event, slack=0.0): plan.config.run.rounds}
