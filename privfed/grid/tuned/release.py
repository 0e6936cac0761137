"""The release of a tuning: the best run's directory, and nothing that tells of the others.

It is written anew: its files are dated when all candidates ended, its place names none of them.
"""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

from accounting import durable, regular
from accounting.documents import from_json
from privfed.store.run_directory import RunDirectory


def release(run: Path, to: Path, by_way_of: Path) -> None:
    """Copy the directory `run` to `to`, which appears as a whole; `by_way_of` is its first place.

    Hidden files (locks, what a crash left half written) stay behind.
    """
    shutil.rmtree(by_way_of, ignore_errors=True)
    _copy(run, by_way_of)
    copied = RunDirectory(by_way_of)
    summary = from_json(regular.read_text(copied.summary))
    copied.write_summary({**summary, "run": str(to)})
    by_way_of.rename(to)
    durable.sync_folder(to.resolve().parent)


def _copy(folder: Path, to: Path) -> None:
    durable.make_folder(to, stat.S_IMODE(folder.stat().st_mode))
    for item in sorted(folder.iterdir()):
        if item.name.startswith("."):
            continue
        if item.is_dir():
            _copy(item, to / item.name)
        else:
            durable.write_atomically(to / item.name, regular.read_bytes(item))
            (to / item.name).chmod(stat.S_IMODE(item.stat().st_mode))
