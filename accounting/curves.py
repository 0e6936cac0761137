"""Epsilon as a curve: over the events of a run, and over delta."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from accounting.accountants import ACCOUNTANTS, epsilon
from accounting.events import Event, Spending
from accounting.ledger import Ledger

Curve = list[tuple[float, dict[str, float | None]]]
"""Points, each with the epsilon of every accountant (None: the accountant has no bound)."""


def over_rounds(prior: Spending, events: Sequence[Event], delta: float, points: int = 25) -> Curve:
    """Returns epsilon after `prior` and each of about `points` prefixes of `events`.

    The last prefix is all of `events`.
    """
    rounds = np.unique(np.linspace(1, len(events), min(points, len(events))).round().astype(int))
    curve: Curve = []
    total, done = Counter(prior), 0
    for count in rounds.tolist() if events else []:
        total.update(events[done:count])
        done = count
        curve.append((count, _by_accountant(total, delta)))
    return curve


def spent_by(ledger: Ledger) -> list[Event]:
    """Returns the events that a run spent, oldest first: one per round, or only its choice."""
    events = [charge.event for charge in ledger.charges]
    return events if ledger.chosen is None else [ledger.chosen] * bool(events)


def over_delta(spending: Spending, delta: float, points: int = 13) -> Curve:
    """Returns the epsilon at deltas up to three powers of ten on both sides of `delta`, below 1."""
    deltas = delta * 10.0 ** np.linspace(-3, 3, points)
    return [(at, _by_accountant(spending, at)) for at in deltas.tolist() if at < 1.0]


def _by_accountant(spending: Spending, delta: float) -> dict[str, float | None]:
    return {name: epsilon(spending, delta, name) for name in ACCOUNTANTS}
