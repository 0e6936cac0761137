"""Rows of a site with a delay: a thread trains them, while the site answers with noise alone.

Whether rows are ready in time depends on the clients that were sampled. Their time must therefore
suffice, whatever the coordinator does (rules of proof, section 9.1, S1): a site declines a run if
its largest cohort takes more than half of `delay` deadlines (`joining.too_slow`). Rows are used
only if that many deadlines have passed by the site's own clock, and no new rows begin before that.
Neither condition depends on data.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from privfed.core.vector import Indices
from privfed.privacy.mechanism import BoundedRows

Chunks = list[tuple[Indices, BoundedRows]]
_log = logging.getLogger(__name__)
"""A site's own log, which only its owner reads."""


class LateRows:
    """The rows of a site for a later `round`, which `train` computes in a thread of its own."""

    def __init__(self, round: int, train: Callable[[], Chunks]) -> None:
        self.round = round
        self._train, self._rows = train, Chunks()
        self._thread = threading.Thread(target=self._run, name="late rows", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._rows = self._train()
        except Exception:  # single clients' failures are confined before (`IsolatedTraining`)
            _log.exception("NO CLIENT OF THIS SITE COUNTS in round %d", self.round)

    def ready(self) -> Chunks:
        """Waits until training has ended; returns the rows in chunks, none if it failed."""
        self._thread.join()
        return self._rows


@dataclass
class LateWork:
    """The late rows of a site: at most those of one later round, in training or ready.

    Rows that were lost with the process, or whose round has passed, are left out of all sums.
    `seconds` is the time that training may take: the delay, times `secure.deadline`.
    """

    seconds: float
    clock: Callable[[], float] = time.monotonic
    _began: float = field(default=float("-inf"), repr=False)
    _next: LateRows | None = field(default=None, repr=False)

    def due(self, round: int) -> Iterable[tuple[Indices, BoundedRows]]:
        """Returns the rows for `round`, in chunks: none if others, or no rows, are trained."""
        if self._next is None or self._next.round > round:
            return ()
        late, self._next = self._next, None
        if late.round < round or self._early():
            return ()
        return late.ready()

    def begin(self, round: int, train: Callable[[], Chunks]) -> None:
        """Begins to train the rows for the later `round`, unless the last ones began too lately."""
        if self._early():
            return
        self._next, self._began = LateRows(round, train), self.clock()

    def _early(self) -> bool:
        """Whether less than `seconds` have passed since rows began. Depends on no data."""
        early = self.clock() - self._began < self.seconds
        if early:
            _log.warning("rounds follow each other in less than secure.deadline; rows are left out")
        return early
