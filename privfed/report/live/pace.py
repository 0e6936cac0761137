"""How fast a run goes, and for how long it still will."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

_WINDOW = 30.0
"""Seconds over which the pace is taken."""
_FEWEST = 2
"""Rounds that a pace needs."""


class Pace:
    """Rounds a second of late, as rounds are counted by `at`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()
        self.began = clock()

    def at(self, round: int) -> None:
        """Note that `round` is over (or is where the run goes on)."""
        self._seen.append((self._clock(), round))
        while len(self._seen) > _FEWEST and self._seen[-1][0] - self._seen[0][0] > _WINDOW:
            self._seen.popleft()

    @property
    def rate(self) -> float | None:
        """Rounds a second; None before there are any."""
        if len(self._seen) < _FEWEST:
            return None
        (began, first), (now, last) = self._seen[0], self._seen[-1]
        return (last - first) / (now - began) if now > began and last > first else None

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return self._clock() - self.began
