"""A privacy profile that is claimed: points (epsilon, delta), all of which hold at once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from accounting.empirical.two_sample import Claim
from accounting.errors import AccountingError
from accounting.events import Event, Spending
from accounting.guarantee import TIGHTEST, guarantee

_LEAST = 1e-9
"""The smallest of the deltas, over the ledger's: guesses that are nearly all right are as rare."""
_POINTS = 60
"""How many deltas up to a tenth: so dense that nothing is lost of a curve between them."""
_LARGE = np.arange(0.15, 1.0, 0.05)


def refutable_claims(
    spending: Spending, delta: float, accountant: str = TIGHTEST
) -> tuple[list[Claim], float]:
    """What one run is held against that spent `spending`: points of a profile, and a probability.

    The first is what the ledger claims at `delta`; none where it claims nothing finite. Rounds with
    slack are within that total variation of rounds that were accounted for, whoever is in the
    population (a sum aborts, or noise is drawn nearly exactly). So is the whole run within the sum
    of all slack, for all coins of its canaries together, and an event has at most that much more
    probability than under the profile without slack. The sum is to be added to every p-value.
    Counted in the delta of each canary, it would cost K times as much.
    """
    slack = sum(event.slack * count for event, count in spending.items())
    claimed = guarantee(spending, delta, accountant).epsilon
    if claimed == math.inf:
        return [], 1.0
    if not slack:
        return list(claimed_profile(spending, delta, accountant)), 0.0
    accounted: Counter[Event] = Counter()
    for event, count in spending.items():
        accounted[replace(event, slack=0.0)] += count
    return [(claimed, delta), *claimed_profile(accounted, delta, accountant)], min(slack, 1.0)


def claimed_profile(
    spending: Spending, delta: float, accountant: str = TIGHTEST, points: int = _POINTS
) -> Iterator[Claim]:
    """Points of the profile of `spending`: at `delta`, then from small deltas to large ones.

    They are those that `accountant` claims: a tighter one claims more. So many `points` are at
    deltas up to a tenth. A delta at which nothing finite is claimed is left out.
    """
    deltas = (delta, *np.geomspace(_LEAST * delta, 0.1, points).tolist(), *_LARGE.tolist())
    yield from points_of(lambda at: guarantee(spending, at, accountant).epsilon, deltas)


def points_of(profile: Callable[[float], float], deltas: Iterable[float]) -> Iterator[Claim]:
    """Points of `profile`, epsilon by delta, at `deltas`, but for those where it claims nothing.

    There epsilon is infinite, or no accountant knows it.
    """
    for at in deltas:
        try:
            epsilon = profile(at)
        except AccountingError:
            continue
        if epsilon < math.inf:
            yield epsilon, at
