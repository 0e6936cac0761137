"""A long run whose memory, open files and run directory must not grow."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass, field
from pathlib import Path

from small import small
from trials.lives import without_disk

from privfed.run.train import train

QUICK = ("cohort.sampler=full", "cohort.size=0")
"""Settings with fast accounting."""
MEMORY, MEMORY_PER_ROUND = 2**22, 512
"""Bytes of resident memory: for allocators and caches, and per charge of the ledger."""
OBJECTS, OBJECTS_PER_ROUND = 10_000, 2
"""Python objects that the collector tracks: in total, and per round."""
LEDGER_PER_ROUND = 200
"""Bytes of a line of the ledger."""


ENTRIES = 9
"""Number of files of a run directory, including client states."""


@dataclass
class Readings:
    """An observer that records the resources of this process every `every` rounds."""

    every: int
    rounds: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    objects: list[int] = field(default_factory=list)

    def before(self, *_: object) -> None: ...
    def choosing(self, *_: object) -> None: ...
    def aborted(self, *_: object) -> None: ...
    def after(self, record: object) -> None: ...

    def after_round(self, round: int) -> None:
        if round % self.every == 0:
            gc.collect()
            self.rounds.append(round)
            self.memory.append(_resident())
            self.files.append(sum(1 for _ in Path("/proc/self/fd").iterdir()))
            self.objects.append(len(gc.get_objects()))


@dataclass(frozen=True)
class Growth:
    """Growth per round over the last `rounds`, two thirds of the run; `files` over all of that
    time.
    """

    rounds: int
    memory: float
    objects: float
    files: int
    ledger: float
    entries: int
    """Number of files in the run directory at the end."""


def soaked(path: Path, rounds: int, *overrides: str) -> Growth:
    """Trains for `rounds` rounds and returns the growth."""
    readings, every = Readings(max(rounds // 9, 1)), max(rounds // 50, 1)
    seldom = (f"run.evaluate_every={every}", f"run.checkpoint_every={every}", *QUICK)
    gc.freeze()  # what was there before is no part of the run, and takes long to look through
    try:
        with without_disk():
            train(small(*overrides, *seldom, f"run.rounds={rounds}"), path, [readings])
    finally:
        gc.unfreeze()
    first = len(readings.rounds) // 3
    span = readings.rounds[-1] - readings.rounds[first]
    return Growth(
        rounds=span,
        memory=(readings.memory[-1] - readings.memory[first]) / span,
        objects=(readings.objects[-1] - readings.objects[first]) / span,
        files=readings.files[-1] - readings.files[first],
        ledger=(path / "ledger.jsonl").stat().st_size / rounds,
        entries=sum(item.is_file() for item in path.rglob("*")),
    )


def assert_flat(growth: Growth) -> None:
    """Raises `AssertionError` if a resource grew by more than its limit after the warm-up."""
    assert growth.files <= 0, growth
    assert growth.memory <= MEMORY / growth.rounds + MEMORY_PER_ROUND, growth
    assert growth.objects <= OBJECTS / growth.rounds + OBJECTS_PER_ROUND, growth
    assert growth.ledger <= LEDGER_PER_ROUND, growth
    assert growth.entries <= ENTRIES, growth


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
