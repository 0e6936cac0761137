"""Trains or resumes one cell of a grid in a separate process, and stores its result."""

from __future__ import annotations

import errno
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

from accounting.durable import make_folder, write_atomically
from accounting.errors import AccountingError
from privfed.config.assembly import assembled
from privfed.config.config import Config, Raw
from privfed.config.resolved import Chosen
from privfed.core import __version__
from privfed.core.errors import Broken, Busy, PrivfedError, public_text, ran_out_of_memory
from privfed.core.text import dump
from privfed.grid.cells import STOPPED, WAITING, Result
from privfed.grid.results import DONE, FAILED, REFUSED
from privfed.run.outcome import Outcome
from privfed.run.train import resume, train

_NO_ROOM = {
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE,
    errno.EACCES, errno.EPERM,
}  # fmt: skip
"""Error numbers that are the machine's fault and not the cell's; a lack of memory is not included.
"""


@dataclass(frozen=True)
class Job:
    """A cell to run in a worker process.

    Attributes:
      name: the cell's name.
      raw: the cell's resolved run file.
      folder: the cell's folder.
    """

    name: str
    raw: Raw
    folder: str
    afresh: bool
    """Whether a broken run directory is renamed and the cell trained again from the start."""
    chosen: Chosen | None = None
    """The charge of the private tuning of which this cell is a candidate; None for any other cell.
    """


def run_cell(job: Job) -> Result:
    """Trains one cell, or resumes it after an interruption; may run in any process.

    No exception is raised: a failure is a result with a reason, which quotes no private data.

    Returns:
      The result. It is also written to the cell's folder, unless its status is "waiting" (another
      process runs the cell) or "stopped" (the machine has a problem).
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
        advice = "its text may quote data; `privfed train --show-values` on this cell shows it"
        result = {"status": FAILED, "reason": f"{public_text(error)} ({place}): {advice}"}
    result |= {"seconds": round(time.monotonic() - began, 3), "version": __version__}
    return result if result["status"] in (STOPPED, WAITING) else _store(folder, result)


def _trained(job: Job, path: Path) -> Outcome:
    """Trains the cell, or resumes it after an interruption; returns its outcome.

    If its run directory is broken and `job.afresh` is set, renames the directory and trains from
    the start.
    """
    if not (path / "config.toml").exists():
        return train(_config(job), path)
    try:
        return resume(path, lambda stored: stored)
    except (Broken, AccountingError):
        if not job.afresh:
            raise
    number = sum(1 for _ in path.parent.glob("run.broken-*")) + 1
    path.rename(path.with_name(f"run.broken-{number}"))  # its charges remain readable
    return train(_config(job), path)


def _machines_trouble(job: Job, error: Exception) -> bool:
    """Whether the machine caused `error`, not the cell; the cell then has to be run again.

    In a grid without private tuning, a cell that lacks memory has failed. In a private tuning, a
    lack of memory counts as a problem of the machine: counted as a failure, it would give the
    candidate the worst score, and so affect the choice.
    """
    number = error.errno if isinstance(error, OSError) else None
    no_memory = number == errno.ENOMEM or ran_out_of_memory(error)
    return number in _NO_ROOM or (job.chosen is not None and no_memory)


def _config(job: Job) -> Config:
    config = assembled(job.raw)
    return replace(config, chosen=job.chosen) if job.chosen else config


def _store(folder: Path, result: Result) -> Result:
    """Stores the result durably, and returns it; if it cannot be written, the returned status is
    "stopped".
    """
    try:
        make_folder(folder)
        write_atomically(folder / "result.json", (dump(result) + "\n").encode())
    except OSError as error:
        return {"status": STOPPED, "reason": public_text(error)}
    return result
