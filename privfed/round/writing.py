"""When releases become durable: at once, or beside work that sends and shows nothing.

A release lies on disk before anybody is asked anything that follows from it, before anything of it
is shown, and before the next charge: each of these waits for `settle`. What a run does by itself in
between, as the server's step and the evaluation's forward passes, need not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Protocol, Self

Write = Callable[[], None]


class Writing(Protocol):
    """Whoever makes releases durable, one after the other."""

    def begin(self, write: Write) -> None:
        """Have `write` called, once whatever was begun before is through."""
        ...

    def settle(self) -> None:
        """Return when all that was begun is durable. Raises what a write raised."""
        ...


class AtOnce:
    """Writes before it goes on."""

    def begin(self, write: Write) -> None:
        write()

    def settle(self) -> None:
        return


class InBackground:
    """Writes in a thread of its own.

    Leaving its context waits for that, however often it is interrupted: whoever comes next finds
    all written. A write that failed raises its error there, whatever else went wrong.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="releases")
        self._begun: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        interrupted = self._waited()
        self._thread.shutdown()
        self.settle()
        if interrupted and error is None:
            raise interrupted

    def begin(self, write: Write) -> None:
        self.settle()
        self._begun = self._thread.submit(write)

    def settle(self) -> None:
        if self._begun is not None:
            wait([self._begun])
            begun, self._begun = self._begun, None
            begun.result()

    def _waited(self) -> BaseException | None:
        """What interrupted the wait for what was begun, once that is through."""
        interrupted = None
        while self._begun is not None and not self._begun.done():
            try:
                wait([self._begun])
            except BaseException as signal:
                interrupted = signal
        return interrupted
