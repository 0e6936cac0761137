"""How long tests wait for what has to happen: minutes, so that no machine is too slow for them."""

import time
from collections.abc import Callable
from typing import TypeVar

LONG = 300.0
"""Seconds that are waited at most for what comes at once on a machine with nothing else to do."""
BRIEF = 0.2
"""Seconds of a deadline that is to pass, whatever the machine."""
_LOOK = 0.005
"""Seconds between two looks."""

Seen = TypeVar("Seen")


def until(condition: Callable[[], Seen], what: str | Callable[[], object]) -> Seen:
    """Looks at `condition` until it holds.

    Args:
      condition: what is to become true; it may raise once it never will.
      what: names it in a failure, or returns its name then.

    Returns:
      What `condition` returned at last.

    Raises:
      AssertionError: if it does not hold within minutes.
    """
    last = time.monotonic() + LONG
    while not (seen := condition()):
        if time.monotonic() > last:
            raise AssertionError(f"waited for {what() if callable(what) else what}")
        time.sleep(_LOOK)
    return seen
