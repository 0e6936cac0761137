"""Candidates that nobody hears: what each of them prints would tell how many there are."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from privfed.grid.cell_job import Job, run_cell
from privfed.grid.cell_results import Result


@dataclass(frozen=True)
class Unheard:
    """`run_cell`, whose standard output and error go to the end of the file `log`."""

    log: Path

    def __call__(self, job: Job) -> Result:
        with _into(self.log):
            return run_cell(job)


def note(log: Path, line: str) -> None:
    """Add `line` to the file `log`, for who may read it."""
    with log.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


@contextlib.contextmanager
def _into(log: Path) -> Iterator[None]:
    """Send both streams to `log`; those of a worker for good, and past Python as well."""
    with log.open("a", encoding="utf-8") as file:
        if multiprocessing.parent_process() is not None:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            yield
