"""Executes private tuning: charges it, draws and trains candidates, and releases the best run.

```text
charge     one line in GRID/tuning.jsonl, durable, before anything is drawn
draw       the number of candidates and each one's combination
train      each of them under GRID/private/ (0700), in any order, resumed after a crash
release    GRID/best: the run with the best score, and nothing of the others
```

A candidate that fails has the worst score and is never trained again, since repeating it until it
succeeds would change the distribution of the choice. A problem of the machine is not a failure of a
candidate: the same command resumes with the same candidates.

The number of candidates is secret, and each candidate is a combination drawn uniformly. The draws
derive from a key under private/, which the operating system's CSPRNG generates once, so an
interrupted tuning resumes with the same candidates. In a seeded simulation the draws derive from
the seed; a combination that is drawn twice would repeat the same run, and is therefore trained
once.

The release is the directory of the best run, which reveals nothing about the other candidates. It
is a new copy, so its files are dated after the end of all candidates, and its path names no
candidate.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accounting import durable, regular
from accounting.choosing.repetitions import BITS
from accounting.documents import from_json
from accounting.durable import make_folder
from accounting.guarantee import Guarantee, spent
from accounting.ledger import Ledger
from privfed.config.overrides import value_at
from privfed.config.resolved import Chosen
from privfed.core.errors import Refused
from privfed.core.streams import Keys, Streams
from privfed.grid.cell_job import Job, run_cell
from privfed.grid.cells import STOPPED, WAITING, Cell, Result
from privfed.grid.process_pool import Ended, WorkerDied, work
from privfed.grid.results import DONE, FAILED, REFUSED, Files
from privfed.grid.tuning_charge import Places, charge_tuning, refuse_uncharged_candidate, secret
from privfed.grid.tuning_proposal import Proposal, score_of
from privfed.store.folders import held_alone
from privfed.store.run_directory import RunDirectory

_WORD = 64


@dataclass(frozen=True)
class Candidate:
    """A run among which private tuning chooses: its cell, and the name of its folder under
    private/candidates/.
    """

    cell: Cell
    folder: str


def candidates(proposal: Proposal, key: bytes | None) -> list[Candidate]:
    """Draws the number of candidates, and a combination of `tune.over` for each.

    Args:
      proposal: the accepted tuning.
      key: the secret from which the draws derive; None in a seeded simulation.

    Returns:
      The candidates in the order of the draws; in a seeded simulation, each combination once.
    """
    streams = Streams(proposal.config.run.seed, simulated=proposal.seeded, key=key)
    count = proposal.repetitions.number(_whole_number(streams.at("candidates"), BITS))
    drawn = []
    for place in range(1, count + 1):
        # 128 bits: the remainder favours no combination by more than 2^-64.
        word = _whole_number(streams.at("candidates", place), 2 * _WORD)
        cell = proposal.cells[word % len(proposal.cells)]
        drawn.append(Candidate(cell, cell.name if proposal.seeded else f"{place:06d}"))
    return list({candidate.folder: candidate for candidate in drawn}.values())


def _whole_number(keys: Keys, bits: int) -> int:
    """Returns a uniform random integer of `bits` bits; `bits` is a multiple of 64."""
    words = keys.bits(bits // _WORD)
    return sum(int(word) << (_WORD * place) for place, word in enumerate(words))


def release(run: Path, to: Path, by_way_of: Path) -> None:
    """Copies a run directory atomically; the path in its summary becomes `to`.

    Hidden files (locks, temporary files) are not copied.

    Args:
      run: the directory of the run.
      to: the new directory.
      by_way_of: a temporary path on the same file system; anything at that path is removed.
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


@dataclass(frozen=True)
class Redirected:
    """A function that calls `run_cell`, with standard output and error appended to `log`."""

    log: Path

    def __call__(self, job: Job) -> Result:
        with _into(self.log):
            return run_cell(job)


def note(log: Path, line: str) -> None:
    """Appends `line` to the private file `log`."""
    with log.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


@contextlib.contextmanager
def _into(log: Path) -> Iterator[None]:
    """Returns a context that appends standard output and standard error to `log`.

    In a worker process, the redirection is permanent and includes output of native code.
    """
    with log.open("a", encoding="utf-8") as file:
        if multiprocessing.parent_process() is not None:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            yield


@dataclass(frozen=True)
class Tuned:
    """A completed private tuning.

    The best run is released in the directory `path`, and `outcome` is its summary. `guarantee` is
    that of the choice, whose charge is in the file `ledger`.
    """

    path: Path
    ledger: Path
    proposal: Proposal
    outcome: dict[str, Any]
    guarantee: Guarantee

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `privfed experiment --json` prints."""
        values = {key: self.outcome.get(key) for key in ("epsilon", "delta", "unit", "relation")}
        measure = self.proposal.measure
        return {
            "best": str(self.path),
            "measure": measure,
            measure: score_of(self.outcome, measure),
            "chosen": self.outcome["combination"],
            **values,
            "epsilon": self.guarantee.epsilon,
            "ledger": str(self.ledger),
            "simulation": self.proposal.plan.simulation is not None,
        }


def tune(files: Files, proposal: Proposal, processes: int) -> Tuned:
    """Charges the tuning, draws candidates, trains those without a result, and releases the best.

    Args:
      files: the paths of the grid's tables, in the folder of the tuning.
      proposal: the accepted tuning.
      processes: the number of worker processes.

    Returns:
      The released run and its guarantee.

    Raises:
      Refused: if another process tunes in this folder, runs or the ledger of another tuning exist
        there, the machine has a problem, or no candidate has a score.
      BudgetExceeded: if earlier runs left too little of the budget.
      Broken: if the secret or the candidates of a charged tuning are lost.
    """
    places = Places(files.folder)
    make_folder(places.private, 0o700)
    places.private.chmod(0o700)
    taken = Refused(
        f"{files.folder} is being tuned by another process; wait for that process to end"
    )
    with held_alone(places.private, taken):
        ledger = charge_tuning(proposal, places)
        if not places.best.exists():
            drawn = candidates(proposal, secret(proposal, places, ledger))
            chosen = Chosen(proposal.repetitions, ledger.charges[0].hash)
            results = _trained(drawn, places, chosen, processes)
            best = drawn[_best(proposal, results)]
            run = places.candidates / best.folder / "run"
            refuse_uncharged_candidate(run, ledger)
            release(run, places.best, places.private / "best")
        os.utime(places.ledger)  # its former date would reveal how long the candidates took
    return _tuned(places, proposal, ledger)


def _trained(
    drawn: Sequence[Candidate], places: Places, chosen: Chosen, processes: int
) -> list[Result]:
    """Returns the results in the order `drawn`. Raises `Refused` if the machine interrupted any."""
    results = {each.folder: _result(places.candidates / each.folder) for each in drawn}
    jobs = [
        Job(
            each.folder, each.cell.config.values(), str(places.candidates / each.folder), False,
            chosen,
        )
        for each in drawn
        if results[each.folder] is None and each.cell.config is not None
    ]  # fmt: skip
    for event in work(Redirected(places.log), jobs, processes):
        if isinstance(event, Ended):
            results[event.job.name] = _ended(event, places.log)
    return [results[each.folder] or {} for each in drawn]


def _result(folder: Path) -> Result | None:
    """Returns the stored result of a candidate; None if the candidate has to be run."""
    try:
        result = from_json(regular.read_text(folder / "result.json"))
    except (OSError, ValueError):
        return None
    ended = isinstance(result, dict) and result.get("status") in (DONE, REFUSED, FAILED)
    return result if ended else None


def _ended(event: Ended[Job], log: Path) -> Result:
    """Returns the result of the candidate whose job ended.

    Raises `Refused` if the candidate was interrupted. The reason, which may reveal the candidate,
    is only written to `log`.
    """
    result = event.result
    if isinstance(result, WorkerDied) or result["status"] in (STOPPED, WAITING):
        note(
            log,
            f"{event.job.name}: {result if isinstance(result, WorkerDied) else result['reason']}",
        )
        raise Refused(
            f"a candidate was interrupted ({log} states the cause); nothing is lost or released: "
            "correct the cause, and repeat the command to resume"
        )
    return dict(result)


def _best(proposal: Proposal, results: Sequence[Result]) -> int:
    """Returns the index of the best result; refuses if every score is missing or infinite."""
    worst = math.inf if proposal.lower else -math.inf
    scores = [score_of(each.get("outcome", {}), proposal.measure) for each in results]
    filled = [worst if score is None else score for score in scores]
    best = proposal.better(filled)
    if filled[best] == worst:
        raise Refused(
            "no candidate ended with a score, so nothing is released, but the charge remains; see "
            "the causes under private/, which may reveal private data"
        )
    return best


def _tuned(places: Places, proposal: Proposal, ledger: Ledger) -> Tuned:
    """Returns the completed tuning, read from the files of the released run."""
    directory, privacy = RunDirectory.open(places.best), proposal.config.privacy
    outcome = from_json(regular.read_text(directory.summary))
    stored = directory.config.read().values()
    outcome["combination"] = {key: value_at(stored, key) for key in proposal.cells[0].values}
    bound = replace(
        spent(ledger, privacy.delta, privacy.accountant), uncovered=proposal.guarantee.uncovered
    )
    return Tuned(places.best, places.ledger, proposal, outcome, bound)
