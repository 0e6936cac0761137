"""The privacy profile of a claim, and the bounds on membership inference that follow from it."""

from __future__ import annotations

import math

import numpy as np

from accounting.curves import delta_at
from accounting.empirical.claimed_profile import claimed_profile
from accounting.empirical.tradeoff import ClaimedCurve
from accounting.events import Spending
from accounting.guarantee import Guarantee
from privfed.claims.evidence import ClaimedRun
from privfed.claims.schema import MembershipBounds, Point, Rates, Unknown
from privfed.plan.composed_guarantees import added_later
from privfed.plan.prior_spending import Priors, planned_by, total

_EPSILONS = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""The epsilons at which a claim states the privacy profile."""
_FALSE_POSITIVES = (0.001, 0.01, 0.1)


def reported_spending(run: ClaimedRun) -> Spending:
    """Returns the events that the claim's reported guarantee composes, with the number of each.

    If a guarantee of the planned rounds was computed, these are the events of counted earlier runs
    and of all planned rounds or, for a run chosen by private tuning, of the choice. Otherwise, they
    are all charges in the ledger.
    """
    if run.audit.planned is None:
        return run.ledger.spending
    done = run.ledger.run_spending if run.ledger.chosen else planned_by(run.rounds, run.ledger)
    return total([Priors.from_terms(run.ledger.terms).planned, done])


def profile_of(
    run: ClaimedRun, reported: Guarantee
) -> tuple[list[Point] | Unknown, MembershipBounds | Unknown]:
    """Computes the privacy profile of the reported guarantee, and bounds on membership inference.

    Returns:
      The profile, at fixed values of ε, and the bounds that follow from it; each is `Unknown`, with
      the reason, if no profile is proved.
    """
    spending, accountant = reported_spending(run), reported.accountant
    if reason := _unproved(run, reported):
        return Unknown(unknown=reason), Unknown(unknown=reason)
    points = [
        Point(epsilon=epsilon, delta=delta_at(spending, epsilon, accountant))
        for epsilon in _EPSILONS
    ]
    curve = ClaimedCurve(
        [
            *((point.epsilon, point.delta) for point in points),
            *claimed_profile(spending, reported.delta, accountant),
        ]
    )
    positives = 1 - curve.reflected(1 - np.array(_FALSE_POSITIVES))
    rates = [
        Rates(false_positive_rate=false, true_positive_rate=min(float(true), 1.0))
        for false, true in zip(_FALSE_POSITIVES, positives, strict=True)
    ]
    return points, MembershipBounds(correct_guess=(1 + points[0].delta) / 2, rates=rates)


def _unproved(run: ClaimedRun, reported: Guarantee) -> str:
    """Returns the reason why no profile is proved; "" if one is."""
    if not reported.epsilon < math.inf:
        return reported.missing or ("no bound is proved" if run.private else "no noise is added")
    priors = Priors.from_terms(run.ledger.terms).runs
    if added_later(run.rounds, run.ledger) or any(prior.odometer for prior in priors):
        return "releases were added after earlier ones were seen: see guarantee.reported.caveat"
    return ""
