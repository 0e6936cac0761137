"""Files, words and messages of another form than expected, and what may come of them.

A `Target` writes what is valid, spoils it, and reads it as a user's command does. Whatever was
spoiled, the read ends, within time and memory, with what it read or with an error that is meant
for the user; and a file that was only read is as it was.
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
"""The most that one read may take, and by how much memory may grow over all of them."""


class Hung(Exception):
    """A read that did not end."""


@dataclass(frozen=True)
class Target:
    """`valid` files by kind, how they are `spoiled`, and what `reads` them from a folder.

    `changes` where the command may write: then `reads` itself checks what.
    """

    valid: Callable[[Path], list[Files]]
    spoil: Callable[[Files, random.Random], Files]
    read: Callable[[Path], Any]
    meant: tuple[type[Exception], ...] = MEANT
    changes: bool = False


@dataclass(frozen=True)
class Fault(Exception):
    """What came of case `number` of a target instead of a result or a refusal."""

    name: str
    number: int
    cause: str

    def __str__(self) -> str:
        return f"{self.name}, case {self.number}: {self.cause}"


def fuzz(name: str, target: Target, folder: Path, cases: range) -> Counter[str]:
    """How often `target` was read and refused. Raises `Fault` for the first case that did worse."""
    outcomes: Counter[str] = Counter()
    folder.mkdir(parents=True, exist_ok=True)
    valid = target.valid(folder / "valid")
    for files in valid:
        target.read(_written(folder / "case", files))  # what is not spoiled is read
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
    """Raises `Hung`."""

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
