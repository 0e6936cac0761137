"""When a site's masked row leaves: at a fixed time after the model came, whatever it was made of.

Training takes longer the more clients were drawn, and the more rows they have: when a sum leaves
would tell of both (PRIVACY, section 9.1, S1). So it waits until `seconds` after the question, a
constant of the run that is large enough for the largest cohort. Where work was not done by then,
the site has dropped out, which is to be rare enough to be charged, or never: rehearse it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from privfed.secure.summation import Aborted


@dataclass
class FixedTime:
    """Rows leave `seconds` after their question; 0: as soon as they can, where nobody looks."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _began: float | None = field(default=None, init=False)
    _left: bool = field(default=False, init=False)

    def begin(self) -> None:
        """A question came now."""
        self._began, self._left = self.clock(), False

    def wait(self) -> None:
        """Return when the row may leave; at once where it left before, and is asked for again.

        Raises `Aborted` where it is late, as for a question that came to a process before this
        one: nobody knows when that was.
        """
        if not self.seconds or self._left:
            return
        left = -1.0 if self._began is None else self._began + self.seconds - self.clock()
        if left < 0.0:
            raise Aborted("the row was not ready in time, and does not leave")
        self.sleep(left)
        self._left = True
