"""The seconds of a round by phase; each is attributed to the innermost phase."""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from accounting.ledger import Ledger
from privfed.client.trainer import LocalTrainer
from privfed.data.federation import Federation
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.sampling.samplers import Poisson
from privfed.secure.encoded_accumulator import EncodedAccumulator
from privfed.secure.plain_sum import PlainAccumulator
from privfed.store.checkpoint import Checkpoint
from privfed.store.round_logs import Releases

AHEAD = "reading ahead"
"""The phase in which another thread reads, in parallel with all other phases."""
_PHASES: tuple[tuple[str, type, str], ...] = (
    ("reading", Federation, "gather"),
    ("reading", Future, "result"),
    ("drawing", Poisson, "sample"),
    ("training", LocalTrainer, "train"),
    ("clipping", CentralGaussian, "bound"),
    ("adding", PlainAccumulator, "add"),
    ("adding", EncodedAccumulator, "add"),
    ("adding", EncodedAccumulator, "close"),
    ("noise", CentralGaussian, "release"),
    ("writing", Releases, "write"),
    ("writing", Checkpoint, "save"),
    ("writing", Ledger, "charge"),
)
"""A phase, and a method that is part of it."""


class Phases:
    """Seconds by phase of one thread; all reading by other threads is one phase."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inner: list[float] = []
        self._thread = threading.get_ident()

    @contextmanager
    def watched(self) -> Iterator[Phases]:
        """Enters a context in which the methods of all phases are timed."""
        with ExitStack() as stack:
            for phase, kind, name in _PHASES:
                method = self._timed(phase, getattr(kind, name))
                stack.enter_context(patch.object(kind, name, method))
            yield self

    def parts(self, seconds: float) -> dict[str, float]:
        """Returns the fraction of each phase in `seconds`, in per cent."""
        within = {name: taken for name, taken in self.seconds.items() if name != AHEAD}
        within["other"] = max(seconds - sum(within.values()), 0.0)
        return {name: 100 * taken / seconds for name, taken in within.items()}

    def _timed(self, phase: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def timed(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            if threading.get_ident() != self._thread:
                try:
                    return method(*given, **named)
                finally:
                    self.seconds[AHEAD] += time.perf_counter() - began
            self._inner.append(0.0)
            try:
                return method(*given, **named)
            finally:
                taken = time.perf_counter() - began
                self.seconds[phase] += taken - self._inner.pop()
                if self._inner:
                    self._inner[-1] += taken

        return timed
