"""Rows of a site with a delay: a thread trains them, while the site answers with noise alone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from privfed.core.vector import Indices
from privfed.privacy.mechanism import BoundedRows

Chunks = list[tuple[Indices, BoundedRows]]
_log = logging.getLogger(__name__)
"""A site's own log, which only its owner reads."""


class LateRows:
    """The rows of a site for a later `round`, which `train` computes in a thread of its own.

    If the time does not suffice, none of them counts. So one client's rows could affect others'; a
    site therefore declines runs in which its largest cohort would take more than half of the time
    (`privfed.deploy.site.joining.too_slow`; rules of proof, section 9.1, S1).
    """

    def __init__(self, round: int, train: Callable[[], Chunks]) -> None:
        self.round = round
        self._train, self._rows = train, Chunks()
        self._thread = threading.Thread(target=self._run, name="late rows", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._rows = self._train()
        except Exception:  # as for a single client: the site's log alone records it
            _log.warning("training failed", exc_info=True)

    def ready(self) -> Chunks:
        """Returns the rows, in chunks; none if they are not ready, or training failed."""
        if self._thread.is_alive():
            _log.error(
                "NO CLIENT OF THIS SITE COUNTS in round %d: training takes longer than the rounds "
                "of its delay (data.site_delays)",
                self.round,
            )
            return Chunks()
        return self._rows


@dataclass
class LateWork:
    """The late rows of a site: at most those of one round, which are trained or wait for it.

    Rows that were lost with the process, or whose round has passed, are left out of all sums.
    """

    _next: LateRows | None = field(default=None, repr=False)

    def due(self, round: int) -> Iterable[tuple[Indices, BoundedRows]]:
        """Returns the rows for `round`, in chunks: none if others, or no rows, are trained."""
        if self._next is None or self._next.round > round:
            return ()
        late, self._next = self._next, None
        return late.ready() if late.round == round else ()

    def begin(self, round: int, train: Callable[[], Chunks]) -> None:
        """Begins to train the rows for the later `round`, in place of any others."""
        self._next = LateRows(round, train)
