"""The grid engine: every cell once, in parallel, whatever is interrupted in between.

A cell's folder is named by its identity and holds its run directory and, once it ended, its result,
written atomically by the process that ran it. What is done is therefore never repeated or lost, and
what was cut off in the middle is resumed from its own ledger.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import filelock

from accounting.documents import from_json
from accounting.durable import make_folder, write_atomically
from accounting.errors import AccountingError
from privfed import __version__
from privfed.config.assembly import assembled
from privfed.config.config import Raw
from privfed.errors import Broken, Busy, PrivfedError, Refused, public_text
from privfed.grid.cell_charges import charged, uncounted
from privfed.grid.default_measure import of_tuning
from privfed.grid.grid import Cell, Grid, Values, cells, tuned_cells
from privfed.grid.joint_guarantee import Joint, joints
from privfed.grid.process_pool import Died, Ended, work
from privfed.grid.results import (
    DONE,
    FAILED,
    REFUSED,
    Files,
    Row,
    measures_in,
    round_row,
    row,
    write_tables,
)
from privfed.json_text import dump
from privfed.parts import expected
from privfed.round.tally import TOTALS
from privfed.run.outcome import Outcome
from privfed.run.resume import resume
from privfed.run.train import train

STOPPED, WAITING = "stopped", "waiting"
_NO_ROOM = {
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE,
    errno.EACCES, errno.EPERM,
}  # fmt: skip
"""What is the machine's trouble, not the cell's."""
Result = dict[str, Any]
_FINAL = (DONE, REFUSED)
"""How a cell that is tuned on may end, for the choice to be one between all of them."""
_LATE = 100
"""Rounds at the end whose average is told beside the last one."""
_NOT_LAST = {"seed", "cell", "round", "cohort", "clipped", "not_finite", "median_norm"}


@dataclass(frozen=True)
class Job:
    """A cell for another process: its resolved configuration, and its folder."""

    name: str
    raw: Raw
    folder: str
    afresh: bool
    """Whether a run directory that is broken is set aside, and the cell trained again."""


class Watcher(Protocol):
    """Told of the experiment's progress."""

    def begin(self, total: int, done: int, processes: int) -> None: ...

    def started(self, cell: Cell) -> None: ...

    def ended(self, cell: Cell, result: Result) -> None: ...


@dataclass(frozen=True)
class Experiment:
    """All cells of a grid and how far they are. `counts` by status; "waiting" is the rest.

    `joint` is what they guarantee together, those that it was tuned on included, as their ledgers
    stand: for each population by itself.
    """

    files: Files
    counts: dict[str, int]
    joint: tuple[Joint, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The object that `privfed experiment --json` prints."""
        return {
            **self.counts,
            "joint": [joint.to_json() for joint in self.joint],
            "table": str(self.files.table),
            "summary": str(self.files.summary),
        }


def experiment(
    files: Files, grid: Grid, processes: int, retry: bool, watcher: Watcher
) -> Experiment:
    """Run what is left of `grid`, write its tables, and say how it stands.

    `retry` repeats cells that failed or were refused. The tables are also written when it is
    interrupted. Raises `Refused` where another process is at it, and where the disk is full.
    """
    make_folder(cells_folder(files))
    tuned: list[Cell] = []
    with _alone(files):
        found = cells(files.grid, grid)
        if grid.tune:
            keys = [*grid.keys, *grid.tuned]
            heard = functools.partial(_refuse_unmeasured, grid.tune.by)
            tried = _complete(files.tuning, keys, found, processes, retry, watcher, heard)
            if any(result is None or result["status"] not in _FINAL for result in tried.values()):
                return Experiment(files.tuning, _counts(found, tried), _joint(files, found))
            choose = functools.partial(_best, grid, found, tried)
            tuned, found = found, tuned_cells(files.grid, grid, choose)
        together = functools.partial(_joint, files, [*tuned, *found])
        columns = grid.columns
        results = _complete(files, columns, found, processes, retry, watcher, together=together)
    return Experiment(files, _counts(found, results), together())


def _joint(files: Files, of: Sequence[Cell]) -> tuple[Joint, ...]:
    """As the ledgers of the cells stand, however these ended."""
    shares = (share for cell in of for share in charged(cell, folder_of(files, cell)))
    return joints(shares, uncounted(cells_folder(files), {cell.name for cell in of}))


def chosen(files: Files, grid: Grid, found: Sequence[Cell], retry: bool) -> list[Cell] | None:
    """The cells of a grid that tunes, where all that it tunes on has ended; None before."""
    tried = {cell.name: result_of(files, cell, retry) for cell in found}
    if grid.tune is None or any(r is None or r["status"] not in _FINAL for r in tried.values()):
        return None
    return tuned_cells(files.grid, grid, functools.partial(_best, grid, found, tried))


def _best(
    grid: Grid, tried: Sequence[Cell], results: Mapping[str, Result | None], values: Values
) -> Values | str:
    """The tuned keys of the cell `values` with the best mean, or why there are none."""
    assert grid.tune is not None
    mine = [cell for cell in tried if all(cell.values[k] == v for k, v in values.items())]
    loss = next((cell.config.loss for cell in mine if cell.config), None)
    by, lower = of_tuning(grid.tune.by, grid.tune.lower_is_better, loss)
    scores: dict[str, list[float]] = {}
    options: dict[str, Values] = {}
    reason = "none of what was tried for it is done"
    for cell in mine:
        result = results[cell.name] or {}
        chosen = {key: cell.values[key] for key in grid.tuned if key in cell.values}
        name = repr(chosen)
        options[name] = chosen
        score = _number(result.get("outcome", {}).get(by))
        worst = math.inf if lower else -math.inf
        scores.setdefault(name, []).append(worst if score is None else score)
        reason = str(result.get("reason", reason))
    means = {name: sum(of) / len(of) for name, of in scores.items()}
    best = (min if lower else max)(means, key=lambda name: means[name])
    if not math.isfinite(means[best]):
        return f"nothing that was tried to tune it is done; the last: {reason}"
    return options[best]


def _number(value: Any) -> float | None:
    """`value`, where it is a number; NaN (which JSON holds as null) is none."""
    numeric = isinstance(value, int | float) and not math.isnan(value)
    return float(value) if numeric else None


def _refuse_unmeasured(by: str, result: Result) -> None:
    """Raises `Refused` where a run that is done has no measure called `by`."""
    if by and result["status"] == DONE and by not in (known := measures_in(result["outcome"])):
        raise Refused(f"tune.by is {by!r}, which is no measure; {expected(by, known)}")


def _complete(
    files: Files,
    keys: Sequence[str],
    found: Sequence[Cell],
    processes: int,
    retry: bool,
    watcher: Watcher,
    heard: Callable[[Result], None] = lambda result: None,
    together: Callable[[], Sequence[Joint]] = tuple,
) -> dict[str, Result | None]:
    """Run what is left of `found` and write its tables, also where it is interrupted.

    `heard` is told each result at once, and may refuse to go on. `together` says what the table is
    to state of all cells, once they ended.
    """
    results = {cell.name: result_of(files, cell, retry) for cell in found}
    todo = {cell.name: cell for cell in found if results[cell.name] is None}
    refused = [cell for cell in found if cell.config is None]
    watcher.begin(len(found), len(found) - len(todo) - len(refused), processes)
    for cell in refused:
        watcher.started(cell)
        watcher.ended(cell, results[cell.name] or {})
    try:
        for known in results.values():
            if known is not None:
                heard(known)
        for cell, result in _run(files, todo, processes, retry, watcher):
            results[cell.name] = result
            heard(result)
    except BaseException:
        with contextlib.suppress(OSError):  # the first trouble is the one to tell of
            _write(files, keys, found, results, together())
        raise
    _write(files, keys, found, results, together())
    return results


def _run(
    files: Files, todo: dict[str, Cell], processes: int, retry: bool, watcher: Watcher
) -> Iterator[tuple[Cell, Result]]:
    jobs = [
        Job(name, cell.config.values(), str(folder_of(files, cell)), retry)
        for name, cell in todo.items()
        if cell.config is not None
    ]
    for event in work(run_cell, jobs, processes):
        cell = todo[event.job.name]
        if not isinstance(event, Ended):
            watcher.started(cell)
            continue
        result = event.result
        if isinstance(result, Died):
            # Not kept, and a result that it wrote before it died counts: the same command goes on.
            died = {"status": FAILED, "reason": str(result), "version": __version__}
            result = result_of(files, cell, retry=True) or died
        if result["status"] == STOPPED:
            raise Refused(
                f"{result['reason']}: nothing is lost; mend that, and the same command goes on"
            )
        watcher.ended(cell, result)
        yield cell, result


def run_cell(job: Job) -> Result:
    """One cell, in whatever process: trained, or resumed where it was cut off."""
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
        status = STOPPED if error.errno in _NO_ROOM else FAILED
        result = {"status": status, "reason": public_text(error)}
    except Exception as error:  # a bug of one cell must not end the others
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        advice = "its text may quote data; privfed train --show-values on this cell shows it"
        result = {"status": FAILED, "reason": f"{public_text(error)} ({place}): {advice}"}
    result |= {"seconds": round(time.monotonic() - began, 3), "version": __version__}
    return result if result["status"] in (STOPPED, WAITING) else _keep(folder, result)


def _trained(job: Job, path: Path) -> Outcome:
    """Trained from the start, or from where it was cut off."""
    if not (path / "config.toml").exists():
        return train(assembled(job.raw), path)
    try:
        return resume(path, lambda stored: stored)
    except (Broken, AccountingError):
        if not job.afresh:
            raise
    number = sum(1 for _ in path.parent.glob("run.broken-*")) + 1
    path.rename(path.with_name(f"run.broken-{number}"))  # what it was charged stays to be read
    return train(assembled(job.raw), path)


def _keep(folder: Path, result: Result) -> Result:
    """Make the result durable; a full disk stops the experiment, not the cell."""
    try:
        make_folder(folder)
        write_atomically(folder / "result.json", (dump(result) + "\n").encode())
    except OSError as error:
        return {"status": STOPPED, "reason": public_text(error)}
    return result


def result_of(files: Files, cell: Cell, retry: bool) -> Result | None:
    """How a cell ended, None where it has still to run."""
    if cell.config is None:
        return {"status": REFUSED, "reason": cell.refusal, "version": __version__}
    path = folder_of(files, cell) / "result.json"
    try:
        result = from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(result, dict) or result.get("status") not in (DONE, REFUSED, FAILED):
        return None
    if result["status"] == DONE:
        return result if isinstance(result.get("outcome"), dict) else None
    return None if retry else result


def _write(
    files: Files,
    keys: Sequence[str],
    found: Sequence[Cell],
    results: dict[str, Result | None],
    together: Sequence[Joint],
) -> None:
    about = {name: joint for joint in together for name in joint.cells}
    rows: list[Row] = []
    rounds: list[Row] = []
    for cell in found:
        result = results[cell.name]
        if result is None:
            continue
        measured: list[Row] = []
        if result["status"] == DONE:
            measured = list(_rounds(files, cell, result))
            result = _over_rounds(cell, measured, result)
        joint = about[cell.name].columns(cell.name) if cell.name in about else {}
        rows.append(row({**cell.values, **cell.tuned}, cell.seed, cell.name, result, joint))
        rounds += measured
    if rows:
        write_tables(files, keys, rows, rounds)


def _rounds(files: Files, cell: Cell, result: Result) -> Iterator[Row]:
    """What was measured round by round; a line that a power cut tore is left out."""
    path = folder_of(files, cell) / "run" / "metrics.jsonl"
    outcome = result["outcome"]
    lines = path.read_text("utf-8", errors="replace").splitlines() if path.exists() else []
    so_far = dict.fromkeys(TOTALS, 0.0)
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            measured = from_json(line)
            facts = {k: v for k, v in measured.items() if k not in ("format", "simulation_only")}
            also = measured.get("simulation_only", {})
            if also.keys() >= so_far.keys():
                so_far = {name: so_far[name] + also[name] for name in so_far}
                also = {**also, **so_far}
            about = {key: outcome.get(key) for key in ("delta", "simulation")}
            yield round_row(cell.values, cell.seed, cell.name, facts | about | also)


def _over_rounds(cell: Cell, rounds: Sequence[Row], result: Result) -> Result:
    """`result` with the best and the late average of its first measure, and what else was last.

    The best of what was seen on a test set flatters; it stands beside the final value, named so.
    The late average is over the last 100 rounds, where there are so many.
    """
    if not rounds or cell.config is None:
        return result
    outcome = result["outcome"]
    name, last = next(iter(outcome)), rounds[-1]
    seen = [
        (row["round"], value) for row in rounds if (value := _number(row.get(name))) is not None
    ]
    late = [value for round, value in seen if round > last["round"] - _LATE]
    best = min if cell.config.loss.lower_is_better else max
    long = last["round"] >= _LATE
    beside = {
        f"{name}_best": best((value for _, value in seen), default=None),
        f"{name}_last_{_LATE}": sum(late) / len(late) if late and long else None,
    }
    also = {key: value for key, value in last.items() if key not in {*outcome, *_NOT_LAST}}
    return {**result, "outcome": {**outcome, **beside, **also}}


def _counts(found: Sequence[Cell], results: dict[str, Result | None]) -> dict[str, int]:
    counts = {"cells": len(found), DONE: 0, REFUSED: 0, FAILED: 0, WAITING: 0}
    for cell in found:
        result = results[cell.name]
        counts[result["status"] if result else WAITING] += 1
    return counts


@contextlib.contextmanager
def _alone(files: Files) -> Iterator[None]:
    """One process per folder of cells. Raises `Refused` where another one is at it."""
    lock = filelock.FileLock(cells_folder(files) / ".lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout as error:
        raise Refused(
            f"the cells of {files.folder} are being run by another process; wait for it to end"
        ) from error
    try:
        yield
    finally:
        lock.release()


def cells_folder(files: Files) -> Path:
    return files.folder / "cells"


def folder_of(files: Files, cell: Cell) -> Path:
    return cells_folder(files) / cell.name
