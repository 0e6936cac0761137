"""Which of several events costs most, where it is not known which of them happened."""

from __future__ import annotations

from collections.abc import Sequence

from accounting.accountants import ACCOUNTANTS, epsilon
from accounting.events import Event


def dearest(events: Sequence[Event], delta: float) -> int:
    """The place of the event with the largest epsilon at `delta`; of equals, the last one's.

    One that no accountant bounds costs more than any other.
    """
    return max(range(len(events)), key=lambda place: (_cost(events[place], delta), place))


def _cost(event: Event, delta: float) -> float:
    bounds = [epsilon({event: 1}, delta, name) for name in ACCOUNTANTS]
    return min((bound for bound in bounds if bound is not None), default=float("inf"))
