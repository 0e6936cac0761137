"""Epsilon as a curve: over the events of a run as they happened, and over delta."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from accounting.accountants import ACCOUNTANTS, epsilon
from accounting.events import Event, Spending

Curve = list[tuple[float, dict[str, float | None]]]
"""Places, and what every accountant says there (None: it has no bound)."""


def over_rounds(prior: Spending, events: Sequence[Event], delta: float, points: int = 25) -> Curve:
    """After about `points` prefixes of `events` (the last is all of them), `prior` included."""
    places = np.unique(np.linspace(1, len(events), min(points, len(events))).round().astype(int))
    found: Curve = []
    total, done = Counter(prior), 0
    for place in places.tolist() if events else []:
        total.update(events[done:place])
        done = place
        found.append((place, _by_accountant(total, delta)))
    return found


def over_delta(spending: Spending, delta: float, points: int = 13) -> Curve:
    """At deltas three powers of ten to both sides of `delta`, below 1."""
    places = delta * 10.0 ** np.linspace(-3, 3, points)
    return [(at, _by_accountant(spending, at)) for at in places.tolist() if at < 1.0]


def _by_accountant(spending: Spending, delta: float) -> dict[str, float | None]:
    return {name: epsilon(spending, delta, name) for name in ACCOUNTANTS}
