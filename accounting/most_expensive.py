"""The most expensive of several events, for a charge whose event is unknown."""

from __future__ import annotations

from collections.abc import Sequence

from accounting.accountants import ACCOUNTANTS, epsilon
from accounting.events import Event
from accounting.over_rounds import BufferedToeplitz, RandomAllocation, Separated


def most_expensive(events: Sequence[Event], delta: float) -> int:
    """Returns the index of the event with the largest epsilon at `delta` (the last such event).

    An event without a bound is the most expensive. If the cost of some events depends on their
    number of rounds in the run (those of `accounting.over_rounds`), only these are compared, so
    that the unknown charge adds a round to their number.
    """
    counted = [place for place, event in enumerate(events) if _is_counted(event)]
    places = counted or range(len(events))
    return max(places, key=lambda place: (_cost(events[place], delta), place))


def _is_counted(event: Event) -> bool:
    return isinstance(event.release, Separated | RandomAllocation | BufferedToeplitz)


def _cost(event: Event, delta: float) -> float:
    bounds = [epsilon({event: 1}, delta, name) for name in ACCOUNTANTS]
    return min((bound for bound in bounds if bound is not None), default=float("inf"))
