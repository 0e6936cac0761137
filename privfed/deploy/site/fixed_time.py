"""When a site's answer leaves: at a fixed time after it was asked for, whatever it was made of.

Training takes longer the more clients were drawn, and the more rows they have: when a sum leaves
would tell of both (PRIVACY, section 9.1, S1). So it waits until `seconds` are over, a constant of
the run that is large enough for the largest cohort. Where work was not done by then, the site has
dropped out, which is to be rare enough to be charged, or never: rehearse it
(`privfed.deploy.site.rehearsal`). Reading a site's table takes longer the more it holds, too: it is
given up at that time, since who is not read by then does not count.

A machine that has just worked wakes up some microseconds sooner or later than one that has slept.
So an answer leaves a little later than that, by a part of `seconds` that is drawn afresh.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import TypeVar

from privfed.secure.summation import Aborted

_random = random.SystemRandom()
Work = TypeVar("Work")


class Late(Aborted):
    """A sum that was not ready in time: it does not leave, nor does it later."""


@dataclass(frozen=True)
class FixedTime:
    """What follows from data leaves `seconds` after it was asked for; 0: at once.

    An answer that took longer than that never leaves, and a table that did is nobody's.
    """

    seconds: float
    blur: float = 0.02
    """An answer leaves up to this part of `seconds` later, uniformly."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def answer(self, work: Callable[[], bytes]) -> bytes:
        """What `work` answers, or raises, no sooner and no later.

        Raises `Late` where it took longer, once so much time is over for a further time.
        """
        if not self.seconds:
            return work()
        began = self.clock()
        try:
            return work()
        finally:
            passed = self.clock() - began
            times = max(1, math.ceil(passed / self.seconds))
            self._wait(times * self.seconds - passed)
            if times > 1:
                raise Late("the sum was not ready in time, and does not leave")

    def cut_off(self, work: Callable[[], Work], late: Callable[[], Work]) -> Work:
        """What `work` returns, or raises, no sooner and no later; what `late` does if it is not.

        What `work` still does then is not ended, and comes to nothing.
        """
        if not self.seconds:
            return work()
        began, pool = self.clock(), ThreadPoolExecutor(1)
        try:
            return pool.submit(work).result(self.seconds)
        except FutureTimeout:
            return late()
        finally:
            pool.shutdown(wait=False)
            self._wait(self.seconds - (self.clock() - began))

    def _wait(self, seconds: float) -> None:
        """Sleep so long, and up to the blur longer."""
        blur = self.blur * self.seconds * _random.random()
        self.sleep(max(0.0, seconds + blur))
