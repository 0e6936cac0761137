"""Files, words and messages of unexpected form, and the permitted outcomes of reading them.

A `Target` writes valid files, spoils them, and reads them as a user's command does. For any fault,
the read ends within time and memory, with a result or with an error meant for the user. A file that
was only read is unchanged.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trials.mutations import Files
from waiting import LONG

from accounting.errors import AccountingError
from experiments.benchmarks.work.memory import forget_peak, peak
from privfed.core.errors import PrivfedError

MEANT = (PrivfedError, AccountingError)
SECONDS, BYTES = LONG, 2**30
"""Longest duration of one read, and largest growth of memory over all of them."""


class Hung(Exception):
    """A read that did not end."""


@dataclass(frozen=True)
class Target:
    """Returns `valid` files by kind, spoils them, and reads them from a folder.

    `changes` states that the command may write; then `read` itself checks the changes.
    """

    valid: Callable[[Path], list[Files]]
    spoil: Callable[[Files, random.Random], Files]
    read: Callable[[Path], Any]
    meant: tuple[type[Exception], ...] = MEANT
    changes: bool = False


@dataclass(frozen=True)
class Fault(Exception):
    """The outcome of case `number` of a target, if it was neither a result nor a refusal."""

    name: str
    number: int
    cause: str

    def __str__(self) -> str:
        return f"{self.name}, case {self.number}: {self.cause}"


def fuzz(name: str, target: Target, folder: Path, cases: range) -> Counter[str]:
    """Returns how often `target` was read and refused. Raises `Fault` for the first other
    outcome.
    """
    outcomes: Counter[str] = Counter()
    folder.mkdir(parents=True, exist_ok=True)
    valid = target.valid(folder / "valid")
    for files in valid:
        target.read(_written(folder / "case", files))  # valid files are read
    forget_peak()
    before = peak()
    for number in cases:
        rng = random.Random(f"{name} {number}")
        files = target.spoil(rng.choice(valid), rng)
        outcomes[_case(name, number, target, _written(folder / "case", files), files)] += 1
    if peak() - before > BYTES:
        raise Fault(name, cases[-1], f"{(peak() - before) / 2**20:.0f} MiB were held")
    return outcomes


def _case(name: str, number: int, target: Target, place: Path, files: Files) -> str:
    try:
        with ending_within(SECONDS):
            target.read(place)
        outcome = "read"
    except target.meant:
        outcome = "refused"
    except Exception as error:
        raise Fault(name, number, repr(error)[:500]) from error
    if not target.changes and _held(place) != files:
        raise Fault(name, number, "what was only read has changed")
    return outcome


@contextlib.contextmanager
def ending_within(seconds: float) -> Iterator[None]:
    """Raises `Hung` if the block takes longer than `seconds`."""

    def hung(*_: object) -> None:
        raise Hung(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, hung)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _written(place: Path, files: Files) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    return place


def _held(place: Path) -> Files:
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file() and path.name != ".lock"
    }
