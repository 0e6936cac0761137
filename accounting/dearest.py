"""Which of several events costs most, where it is not known which of them happened."""

from __future__ import annotations

from collections.abc import Sequence

from accounting.accountants import ACCOUNTANTS, epsilon
from accounting.events import Event
from accounting.over_rounds import BufferedToeplitz, RandomAllocation, Separated


def dearest(events: Sequence[Event], delta: float) -> int:
    """The place of the event with the largest epsilon at `delta`; of equals, the last one's.

    One that no accountant bounds costs more than any other. Where rounds are counted over a run, it
    is one of these: whichever round it was, their count is then no less than how far slots, and
    rows of correlated noise, have gone.
    """
    counted = [place for place, event in enumerate(events) if _is_counted(event)]
    places = counted or range(len(events))
    return max(places, key=lambda place: (_cost(events[place], delta), place))


def _is_counted(event: Event) -> bool:
    return isinstance(event.release, Separated | RandomAllocation | BufferedToeplitz)


def _cost(event: Event, delta: float) -> float:
    bounds = [epsilon({event: 1}, delta, name) for name in ACCOUNTANTS]
    return min((bound for bound in bounds if bound is not None), default=float("inf"))
