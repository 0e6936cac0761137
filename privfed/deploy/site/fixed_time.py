"""When a site's answer leaves: at a fixed time after it was asked for, whatever it was made of.

Training takes longer the more clients were drawn, and the more rows they have: when a sum leaves
would tell of both (PRIVACY, section 9.1, S1). So it waits until `seconds` are over, a constant of
the run that is large enough for the largest cohort. Where work was not done by then, the site has
dropped out, which is to be rare enough to be charged, or never: rehearse it
(`privfed.deploy.site.rehearsal`). Reading a site's table takes longer the more it holds, too.

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
    """Answers leave `seconds` after they were asked for; 0: at once, where nobody looks."""

    seconds: float
    blur: float = 0.02
    """An answer leaves up to this part of `seconds` later, uniformly."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def answer(self, work: Callable[[], bytes]) -> bytes:
        """What `work` answers, or raises, no sooner and no later.

        Raises `Late` where it took longer, once so much time is over for a further time.
        """
        began = self.clock()
        try:
            return work()
        finally:
            if not self.hold(began):
                raise Late("the sum was not ready in time, and does not leave")

    def hold(self, began: float) -> bool:
        """Wait until a whole number of times `seconds` after `began`; whether that is once."""
        if not self.seconds:
            return True
        passed = self.clock() - began
        times = max(1, math.ceil(passed / self.seconds))
        blur = self.blur * self.seconds * _random.random()
        self.sleep(times * self.seconds - passed + blur)
        return times == 1


def within(seconds: float, work: Callable[[], Work]) -> Work:
    """What `work` returns, or raises, `seconds` from now and no sooner.

    Raises `Late` then where it takes longer; what it does is not ended, and comes to nothing.
    """
    until, pool = time.monotonic() + seconds, ThreadPoolExecutor(1)
    try:
        return pool.submit(work).result(seconds)
    except FutureTimeout as error:
        raise Late("the table could not be read in time; raise reading in data.toml") from error
    finally:
        pool.shutdown(wait=False)
        time.sleep(max(0.0, until - time.monotonic()))
