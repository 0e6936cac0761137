"""When a run began and how long it took, as the times of its files say.

A copy has times of its own, and the pauses of a run that was resumed count.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path

from privfed.store.run_directory import RunDirectory


def times_of(path: Path) -> tuple[str | None, float | None]:
    """When the first of a run's files was written, and seconds until the last."""
    directory = RunDirectory(path)
    last = (directory.ledger, directory.metrics.path, directory.checkpoint.path, directory.summary)
    times = []
    for file in (path / ".lock", directory.config.path, *last):
        with contextlib.suppress(OSError):
            times.append(file.stat().st_mtime)
    if not times:
        return None, None
    seconds = round(max(times) - min(times), 3)
    try:
        began = datetime.fromtimestamp(min(times), UTC)
    except (OSError, OverflowError, ValueError):  # no year that a calendar has
        return None, seconds
    return began.isoformat(timespec="milliseconds"), seconds
