"""The largest memory that a process held since it was last asked."""

from __future__ import annotations

import contextlib
import resource
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def forget_peak() -> None:
    """Start afresh, where the system can; else what was held before counts too."""
    with contextlib.suppress(OSError):
        _RESET.write_text("5")


def peak() -> int:
    """Bytes resident at most."""
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    scale = 1024 if sys.platform == "linux" else 1
    return scale * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class AnonymousPeak:
    """A context that looks, every few milliseconds, at what the process holds beside files.

    Pages of files that are mapped are no part of `most`: the system takes them back as it needs.
    """

    def __init__(self) -> None:
        self.most = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.most = max(self.most, anonymous())
            if self._ended.wait(0.005):
                return


def anonymous() -> int:
    """Bytes that are resident and no file's, now; where that cannot be told, 0."""
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("RssAnon:"):
                return 1024 * int(line.split()[1])
    return 0
