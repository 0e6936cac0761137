"""The largest memory that a process held since it was last asked."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

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
