"""Late sums of a site with a delay: a thread trains, while the site answers with noise alone.

Whether a sum is ready, and how busy the machine is, depends on the clients that were sampled for a
later round. No message, decision or time may depend on that (rules of proof, section 9.1, S1):

- A site declines a run if its largest cohort takes more than half of `delay` deadlines
  (`site_setup.too_slow`), and a sum is used only if that many deadlines have passed by the site's
  own clock. Then the thread has ended, except with the probability that S1 neglects.
- Until then the site begins no other late sum, joins no run, and answers no question of another
  run: these would slow each other. This depends on times only.
- The thread keeps its processor busy until then, also after it has finished.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from privfed.deploy.site.policy import Code, Declined, Refusal
from privfed.privacy.integers import Integers

_log = logging.getLogger(__name__)
"""A site's own log, which only its owner reads."""


class LateSum:
    """The site's sum `[m]` for a later `round`, without noise, which a thread computes."""

    def __init__(self, round: int, seconds: float, compute: Callable[[], Integers]) -> None:
        self.round, self._compute = round, compute
        self._row: Integers | None = None
        self._ended = threading.Event()
        until = time.monotonic() + seconds
        self._thread = threading.Thread(
            target=self._run, args=(until,), name="late sum", daemon=True
        )
        self._thread.start()

    def _run(self, until: float) -> None:
        try:
            self._row = self._compute()
        except Exception:  # single clients' failures are confined before (`IsolatedTraining`)
            _log.exception("NO CLIENT OF THIS SITE COUNTS in round %d", self.round)
        self._ended.set()
        keep_busy(until)

    def ready(self) -> Integers | None:
        """Waits until training has ended; returns the sum, or None if it failed."""
        self._ended.wait()
        return self._row


def keep_busy(until: float) -> None:
    """Keeps a processor busy until the time `until` of the monotonic clock."""
    matrix = np.ones((128, 128))
    while time.monotonic() < until:
        matrix = matrix @ matrix / 128.0


@dataclass
class LateWork:
    """The late sums of a site's agent: at most one in training, and at most one of each run.

    Sums that were lost with the process, or whose round has passed, are left out.
    """

    clock: Callable[[], float] = time.monotonic
    _until: float = field(default=float("-inf"), repr=False)
    _training: bytes = field(default=b"", repr=False)
    _sums: dict[bytes, LateSum] = field(default_factory=dict, repr=False)

    def due(self, run: bytes, round: int) -> Integers | None:
        """Returns the sum of the run for `round`; None if there is none, or too early."""
        late = self._sums.get(run)
        if late is None or late.round > round:
            return None
        del self._sums[run]
        if late.round < round or (self._training == run and self._busy()):
            return None
        return late.ready()

    def begin(
        self, run: bytes, round: int, seconds: float, compute: Callable[[], Integers]
    ) -> None:
        """Begins to train for the later `round`, unless `seconds` of another sum have not passed.

        Args:
          run: the hash of the run.
          round: the round of the sum.
          seconds: the time that training may take: the delay, times `secure.deadline`.
          compute: trains, and returns the sum [m].
        """
        if self._busy():
            return
        self._sums[run] = LateSum(round, seconds, compute)
        self._until, self._training = self.clock() + seconds, run

    def refuse_beside(self, run: bytes | None) -> None:
        """Raises `Declined` while a sum is trained, unless it is one of `run`."""
        if self.clock() < self._until and run != self._training:
            raise Declined(
                Refusal(
                    Code.BUSY,
                    "the site trains for a later round of another run, or of this run before it "
                    "was declared again; the coordinator has to ask later",
                )
            )

    def _busy(self) -> bool:
        """Whether the time of the last sum has not passed yet. Depends on no data."""
        busy = self.clock() < self._until
        if busy:
            _log.warning("rounds follow each other in less than secure.deadline; rows are left out")
        return busy
