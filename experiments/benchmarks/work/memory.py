"""The peak memory of this process since the last reset."""

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
    """Resets the peak if the system permits; otherwise earlier memory counts, too."""
    with contextlib.suppress(OSError):
        _RESET.write_text("5")


def peak() -> int:
    """Returns the peak of resident bytes."""
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    scale = 1024 if sys.platform == "linux" else 1
    return scale * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class AnonymousPeak:
    """A context that samples, every few milliseconds, the memory of the process without mapped
    files.

    Pages of mapped files are not part of `most`: the system can reclaim them.
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
    """Returns the current resident bytes that do not belong to a file; 0 if unknown."""
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("RssAnon:"):
                return 1024 * int(line.split()[1])
    return 0
