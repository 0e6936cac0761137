"""Curves of a spending: epsilon over events and over delta, delta over epsilon, and mu."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from accounting.accountants import ACCOUNTANTS, epsilon
from accounting.bounds.closed import composed
from accounting.events import Event, Spending, summable
from accounting.guarantee import TIGHTEST, guarantee
from accounting.ledger import Ledger
from accounting.noises import Gaussian

Curve = list[tuple[float, dict[str, float | None]]]
"""Points, each with the epsilon of every accountant (None: the accountant has no bound)."""


def over_rounds(prior: Spending, events: Sequence[Event], delta: float, points: int = 25) -> Curve:
    """Returns epsilon at `delta` after `prior` and each of up to `points` prefixes of `events`.

    A point is the number of events in the prefix, and each accountant's epsilon. These numbers are
    about evenly spaced from 1 to the number of `events`. Without events the curve is empty.
    """
    rounds = np.unique(np.linspace(1, len(events), min(points, len(events))).round().astype(int))
    curve: Curve = []
    total, done = Counter(prior), 0
    for count in rounds.tolist() if events else []:
        total.update(events[done:count])
        done = count
        curve.append((count, _by_accountant(total, delta)))
    return curve


def spent_events(ledger: Ledger) -> list[Event]:
    """Returns the events that a run spent, oldest first: one per round, or its choice alone."""
    events = [charge.event for charge in ledger.charges]
    return events if ledger.chosen is None else [ledger.chosen] * bool(events)


def over_delta(spending: Spending, delta: float, points: int = 13) -> Curve:
    """Returns each accountant's epsilon at `points` deltas from delta / 1000 to 1000 delta.

    Deltas of 1 or more are left out.
    """
    deltas = delta * 10.0 ** np.linspace(-3, 3, points)
    return [(at, _by_accountant(spending, at)) for at in deltas.tolist() if at < 1.0]


_LEAST_DELTA = 1e-9
"""Least result of `delta_at`, far above accountants' rounding errors: two machines agree."""
_HALVINGS = 45
"""Number of halvings of the logarithm of delta, which leave a relative error below 1e-11."""


def delta_at(spending: Spending, epsilon: float, accountant: str = TIGHTEST) -> float:
    """Returns an upper bound on delta of the composition of `spending` at `epsilon`.

    The result is the least delta, up to rounding, at which the accountant proves an epsilon of at
    most `epsilon`; `_LEAST_DELTA` if that is smaller, and 1 if there is no such delta below 1.
    """

    def holds(delta: float) -> bool:
        return guarantee(spending, delta, accountant).epsilon <= epsilon

    low, high = math.log(_LEAST_DELTA), math.log1p(-1e-9)
    if not holds(math.exp(high)):
        return 1.0
    if holds(math.exp(low)):
        return _LEAST_DELTA
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(math.exp(middle)) else (middle, high)
    return math.exp(high)


def gaussian_mu(spending: Spending) -> float | None:
    """Returns mu if `spending` composes to mu-Gaussian DP exactly (0 if empty); None otherwise.

    Gaussian mechanisms without sampling compose to one (Dong, Roth & Su 2022, corollary 3.3).
    Events with slack are not mu-Gaussian DP.
    """
    noises: Counter[Gaussian] = Counter()
    for event, count in summable(spending).items():
        noise = event.release
        if event.slack or not isinstance(noise, Gaussian) or not noise.noise_multiplier:
            return None
        noises[noise] += count
    return 1 / composed(noises) if noises else 0.0


def _by_accountant(spending: Spending, delta: float) -> dict[str, float | None]:
    return {name: epsilon(spending, delta, name) for name in ACCOUNTANTS}
