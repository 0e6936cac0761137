"""Whether and how a call shows a run while it goes on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from privfed.report.console import console
from privfed.report.notebook import NotebookProgress, in_notebook
from privfed.report.progress import PlainProgress, progress
from privfed.run.outcome import Observer


@contextlib.contextmanager
def watched(shown: bool | None) -> Iterator[list[Observer]]:
    """A context with whoever shows a run; None: in notebooks and terminals alone."""
    notebook = in_notebook()
    if shown is False or (shown is None and not notebook and not sys.stdout.isatty()):
        yield []
        return
    screen = console(False)
    watcher: PlainProgress = NotebookProgress(screen) if notebook else progress(screen)
    with watcher:
        yield [watcher]
