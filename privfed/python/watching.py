"""Whether and how a call shows a run while it goes on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from privfed.report.console import console
from privfed.report.notebook import NotebookProgress, in_notebook
from privfed.report.progress import PlainProgress, progress
from privfed.run.outcome import Observer


def is_shown(shown: bool | None) -> bool:
    """Whether anything is shown; None: in notebooks and terminals alone."""
    return shown if shown is not None else in_notebook() or sys.stdout.isatty()


@contextlib.contextmanager
def watched(shown: bool | None) -> Iterator[list[Observer]]:
    """A context with whoever shows a run; None: in notebooks and terminals alone."""
    if not is_shown(shown):
        yield []
        return
    screen = console(False)
    watcher: PlainProgress = NotebookProgress(screen) if in_notebook() else progress(screen)
    with watcher:
        yield [watcher]
