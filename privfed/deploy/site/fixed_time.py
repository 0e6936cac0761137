"""When a site's answer leaves: at a fixed time after it was asked for, whatever it was made of.

Training takes longer the more clients were drawn, and the more rows they have: when a sum leaves
would tell of both (PRIVACY, section 9.1, S1). So it waits until `seconds` are over, a constant of
the run that is large enough for the largest cohort. Where work was not done by then, the site has
dropped out, which is to be rare enough to be charged, or never: rehearse it
(`privfed.deploy.site.rehearsal`). Reading a site's table takes longer the more it holds, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from privfed.secure.summation import Aborted


@dataclass(frozen=True)
class FixedTime:
    """Answers leave `seconds` after they were asked for; 0: at once, where nobody looks."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def answer(self, work: Callable[[], bytes]) -> bytes:
        """What `work` answers, or raises, no sooner and no later.

        Raises `Aborted` where it took longer.
        """
        began = self.clock()
        try:
            return work()
        finally:
            if not self.hold(began):
                raise Aborted("the sum was not ready in time, and does not leave")

    def hold(self, began: float) -> bool:
        """Wait until `seconds` after `began`. Returns whether it was not later than that."""
        if not self.seconds:
            return True
        left = began + self.seconds - self.clock()
        if left >= 0.0:
            self.sleep(left)
        return left >= 0.0
