"""One cell of a grid, run in a process of its own: trained or resumed, and its result stored."""

from __future__ import annotations

import errno
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

from accounting.durable import make_folder, write_atomically
from accounting.errors import AccountingError
from privfed.config.assembly import assembled
from privfed.config.chosen import Chosen
from privfed.config.config import Config, Raw
from privfed.core.errors import Broken, Busy, PrivfedError, public_text, ran_out_of_memory
from privfed.core.text import dump
from privfed.core.version import __version__
from privfed.grid.cells import STOPPED, WAITING, Result
from privfed.grid.results import DONE, FAILED, REFUSED
from privfed.run.outcome import Outcome
from privfed.run.train import resume, train

_NO_ROOM = {
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE,
    errno.EACCES, errno.EPERM,
}  # fmt: skip
"""What is the machine's trouble, not the cell's, but for memory."""


@dataclass(frozen=True)
class Job:
    """A cell for another process: its resolved configuration `raw`, and its folder."""

    name: str
    raw: Raw
    folder: str
    afresh: bool
    """Whether a run directory that is broken is set aside, and the cell trained again."""
    chosen: Chosen | None = None
    """What charges the choice among this run and others; None for a run that stands alone."""


def run_cell(job: Job) -> Result:
    """Run one cell, in whatever process: train it, or resume it where it was cut off.

    Returns how it ended, which is also written to its folder: unless it only has to wait, or the
    machine is in trouble. No reason quotes private data.
    """
    began = time.monotonic()
    folder = Path(job.folder)
    try:
        outcome = _trained(job, folder / "run")
        result: Result = {"status": DONE, "outcome": outcome.to_json()}
    except Busy as error:
        result = {"status": WAITING, "reason": str(error)}
    except (Broken, AccountingError) as error:
        advice = "--retry sets its run directory aside and trains it afresh"
        result = {"status": FAILED, "reason": f"{error}; {advice}"}
    except PrivfedError as error:
        result = {"status": REFUSED, "reason": str(error)}
    except OSError as error:
        status = STOPPED if _machines_trouble(job, error) else FAILED
        result = {"status": status, "reason": public_text(error)}
    except Exception as error:  # a bug of one cell must not end the others
        if _machines_trouble(job, error):
            return {"status": STOPPED, "reason": public_text(error)}
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        advice = "its text may quote data; privfed train --show-values on this cell shows it"
        result = {"status": FAILED, "reason": f"{public_text(error)} ({place}): {advice}"}
    result |= {"seconds": round(time.monotonic() - began, 3), "version": __version__}
    return result if result["status"] in (STOPPED, WAITING) else _store(folder, result)


def _trained(job: Job, path: Path) -> Outcome:
    """Train from the start, or from where the run was cut off."""
    if not (path / "config.toml").exists():
        return train(_config(job), path)
    try:
        return resume(path, lambda stored: stored)
    except (Broken, AccountingError):
        if not job.afresh:
            raise
    number = sum(1 for _ in path.parent.glob("run.broken-*")) + 1
    path.rename(path.with_name(f"run.broken-{number}"))  # what it was charged stays to be read
    return train(_config(job), path)


def _machines_trouble(job: Job, error: Exception) -> bool:
    """Whether it is not the cell's, so that the cell is tried again.

    Memory that ran out is the trouble of a cell of a table, which ends without others. A run to
    choose from would have the worst score for good, and others might be chosen for it.
    """
    number = error.errno if isinstance(error, OSError) else None
    no_memory = number == errno.ENOMEM or ran_out_of_memory(error)
    return number in _NO_ROOM or (job.chosen is not None and no_memory)


def _config(job: Job) -> Config:
    config = assembled(job.raw)
    return replace(config, chosen=job.chosen) if job.chosen else config


def _store(folder: Path, result: Result) -> Result:
    """Make the result durable; a full disk stops the experiment, not the cell."""
    try:
        make_folder(folder)
        write_atomically(folder / "result.json", (dump(result) + "\n").encode())
    except OSError as error:
        return {"status": STOPPED, "reason": public_text(error)}
    return result
