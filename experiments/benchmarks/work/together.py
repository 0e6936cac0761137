"""A whole run by several processes of this machine, and the seconds of its rounds."""

from __future__ import annotations

import time
from pathlib import Path

from experiments.benchmarks.work.workloads import SAME_FOR_ALL, Workload
from privfed.config.reading import load
from privfed.plan.plan import Plan
from privfed.run.forecast import Forecast
from privfed.run.outcome import RoundRecord
from privfed.run.process_group import joined
from privfed.run.train import train


class Clock:
    """An observer that records the ends of rounds."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def choosing(self, key: str, number: int, count: int) -> None: ...

    def before(self, plan: Plan, forecast: Forecast, path: Path, done: int) -> None:
        self.ends.append(time.perf_counter())

    def after_round(self, round: int) -> None:
        self.ends.append(time.perf_counter())

    def aborted(self, round: int, reason: str) -> None: ...

    def after(self, record: RoundRecord) -> None: ...

    def seconds(self) -> list[float]:
        """Returns the seconds of each round except the first, which warms up."""
        return [end - start for start, end in zip(self.ends[1:], self.ends[2:], strict=False)]


def played(
    workload: Workload, workers: int, rounds: int, out: Path, *overrides: str
) -> list[float]:
    """Returns the seconds of each of `rounds` rounds by `workers` processes; the run remains at
    `out`.

    Two further rounds are run: the first warms up, the last evaluates and saves.
    """
    last = rounds + 2
    still = (f"run.rounds={last}", f"run.evaluate_every={last}", f"run.checkpoint_every={last}")
    clock = Clock()
    with joined(workers) as ranks:
        settings = (*SAME_FOR_ALL, *workload.settings, *still, *overrides)
        train(load(None, settings), out, [clock], ranks)
    return clock.seconds()[:-1]
