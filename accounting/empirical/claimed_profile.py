"""A claimed privacy profile: points (epsilon, delta) that all hold at once."""

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
"""Smallest tested delta divided by the ledger's. Nearly perfect guesses have about the probability
of such a delta."""
_POINTS = 60
"""Number of deltas up to 0.1, dense enough to represent the curve between them."""
_LARGE = np.arange(0.15, 1.0, 0.05)


def refutable_claims(
    spending: Spending, delta: float, accountant: str = TIGHTEST
) -> tuple[list[Claim], float]:
    """Returns the claims to test against one run, and the probability to add to each p-value.

    The first claim is the ledger's epsilon at `delta`. For any population, the total variation
    distance between an executed round and the accounted round is at most the round's slack (the two
    differ if a sum aborts, or because noise is sampled almost exactly). The distance of the
    complete run is therefore at most the sum of all slack, jointly for all inclusion bits of its
    canaries. With slack, the probability of an event is larger by at most this sum, which is
    therefore added to every p-value. Adding it to the delta of each of K canaries instead would
    cost K times as much.

    Args:
      spending: events with their counts.
      delta: delta at which the ledger claims an epsilon.
      accountant: "rdp", "pld" or "tightest".

    Returns:
      Points (epsilon, delta) of the profile, none if no finite epsilon is claimed; and the sum of
      all slack, at most 1.
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
    """Yields points of the profile of `spending`: at `delta`, then from small deltas to large ones.

    The points are those that `accountant` proves: a tighter accountant claims a smaller epsilon.
    After `delta` there are `points` deltas spaced geometrically from 1e-9 `delta` to 0.1, then
    0.15, 0.2, ..., 0.95. Deltas without a finite epsilon are left out.
    """
    deltas = (delta, *np.geomspace(_LEAST * delta, 0.1, points).tolist(), *_LARGE.tolist())
    yield from points_of(lambda at: guarantee(spending, at, accountant).epsilon, deltas)


def points_of(profile: Callable[[float], float], deltas: Iterable[float]) -> Iterator[Claim]:
    """Yields points (epsilon, delta) of `profile` at `deltas`, except where nothing is claimed.

    Nothing is claimed where epsilon is infinite, or where no accountant has a bound.
    """
    for at in deltas:
        try:
            epsilon = profile(at)
        except AccountingError:
            continue
        if epsilon < math.inf:
            yield epsilon, at
