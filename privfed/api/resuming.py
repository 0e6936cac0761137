"""Context managers for a run in Python: advice on resuming, progress, and temporary folders."""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
import tempfile
import warnings
import weakref
from collections.abc import Collection, Iterator
from pathlib import Path

from accounting.guarantee import large_delta
from privfed.config.config import Config
from privfed.config.sections import SECTIONS
from privfed.report.console import console
from privfed.report.notebook import NotebookProgress, in_notebook
from privfed.report.progress import PlainProgress, progress
from privfed.run.outcome import Observer


@contextlib.contextmanager
def resumable(path: Path, given: Collection[str] = (), lasting: bool = True) -> Iterator[None]:
    """Returns a context manager that adds advice on resuming to an interruption or an `OSError`.

    It also restores torch's number of threads.

    Args:
      path: the run directory.
      given: kinds of the parts that were passed as objects.
      lasting: whether the directory is kept.
    """
    try:
        with restored_threads():
            yield
    except (KeyboardInterrupt, OSError) as error:
        if (path / "ledger.jsonl").exists():
            deleted = "this run was temporary and has been deleted"
            error.add_note(_resume_call(path, given) if lasting else deleted)
        raise


def _resume_call(path: Path, given: Collection[str]) -> str:
    """Returns the call that resumes the run at `path`."""
    calls = {
        naming[0]: f"{name}=dict({key}=…)"
        for name, section in SECTIONS.items()
        for key, naming in section.parts.items()
    } | {"model": "model=…", "source": "data=…"}
    again = [calls.get(kind, f"{kind}=…") for kind in sorted(given)]
    call = ", ".join([repr(str(path)), *again])
    return f"all releases are kept; resume by privfed.load({call}).resume()"


@contextlib.contextmanager
def restored_threads() -> Iterator[None]:
    """Returns a context manager that restores torch's number of threads, which runs set."""
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def is_shown(shown: bool | None) -> bool:
    """Whether progress is shown; if `shown` is None, only in notebooks and terminals."""
    return shown if shown is not None else in_notebook() or sys.stdout.isatty()


@contextlib.contextmanager
def watched(shown: bool | None) -> Iterator[list[Observer]]:
    """Returns a context manager for the observers that show progress; none if `shown` is False.

    If `shown` is None, `is_shown` decides.
    """
    if not is_shown(shown):
        yield []
        return
    screen = console(False)
    watcher: PlainProgress = NotebookProgress(screen) if in_notebook() else progress(screen)
    with watcher:
        yield [watcher]


class TemporaryFolder:
    """A folder at `path` that is removed with this object, or when the process ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="privfed-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def warn_of_delta(config: Config) -> None:
    """Warns of a delta that is not below 1 / clients, if the run has a privacy guarantee."""
    privacy = config.privacy
    warning = large_delta(privacy.delta, config.data.clients)
    if warning and config.mechanism.private and privacy.epsilon != math.inf:
        warnings.warn(f"{warning}; choose a smaller delta", stacklevel=3)
