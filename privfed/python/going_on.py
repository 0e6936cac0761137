"""A run that goes on from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from privfed.config.config import Config
from privfed.config.overrides import assign
from privfed.config.reading import reassembled
from privfed.python.interrupting import resumable
from privfed.python.watching import watched
from privfed.store.run_directory import RunDirectory

if TYPE_CHECKING:
    from privfed.run.outcome import Observer


def go_on(
    directory: RunDirectory,
    changes: Mapping[str, Any],
    observers: Sequence[Observer],
    progress: bool | None,
) -> None:
    """Go on with a run, with other values for some keys."""
    from privfed.run.processes.joining import joined
    from privfed.run.resume import resume as resume_in

    def changed(stored: Config) -> Config:
        raw = stored.raw()
        for key, value in changes.items():
            assign(raw, key, value)
        return reassembled(raw, stored)

    workers = directory.config.read().run.workers
    with (
        resumable(directory.path, directory.given),
        watched(progress) as observer,
        joined(workers) as ranks,
    ):
        resume_in(directory, changed, [*observer, *observers], ranks)
