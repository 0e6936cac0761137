"""Deadlines of tests that wait for an event: minutes, so that no machine is too slow."""

import time
from collections.abc import Callable
from typing import TypeVar

LONG = 300.0
"""Longest wait, in seconds, for an event that is immediate on an idle machine."""
BRIEF = 0.2
"""A deadline, in seconds, that is meant to expire on any machine."""
_LOOK = 0.005
"""Seconds between two checks of a condition."""

Seen = TypeVar("Seen")


def until(condition: Callable[[], Seen], what: str | Callable[[], object]) -> Seen:
    """Waits until `condition` holds.

    Args:
      condition: returns a true value once it holds; it may raise once it never will.
      what: names the condition in a failure, or returns its name then.

    Returns:
      The last value of `condition`.

    Raises:
      AssertionError: if it does not hold within minutes.
    """
    last = time.monotonic() + LONG
    while not (seen := condition()):
        if time.monotonic() > last:
            raise AssertionError(f"waited for {what() if callable(what) else what}")
        time.sleep(_LOOK)
    return seen
