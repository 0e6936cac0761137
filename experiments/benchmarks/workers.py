"""Seconds per round with several processes of this machine, against one: the CNN of `workloads`.

    python -m experiments.benchmarks.workers

Runs with one thread per process each, in turn; and that they end in the same model.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from experiments.benchmarks import noise
from experiments.benchmarks.workloads import CNN, SAME_FOR_ALL
from privfed.config import load
from privfed.forecast import Forecast
from privfed.plan import Plan
from privfed.ranks import joined
from privfed.run import RoundRecord, train


class Clock:
    """An observer that notes when rounds end."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def before(self, plan: Plan, forecast: Forecast, path: Path, done: int) -> None:
        self.ends.append(time.perf_counter())

    def after_round(self, round: int) -> None:
        self.ends.append(time.perf_counter())

    def aborted(self, round: int, reason: str) -> None: ...

    def after(self, record: RoundRecord) -> None: ...

    def seconds(self) -> list[float]:
        """Of each round but the first, which warms up."""
        return [end - start for start, end in zip(self.ends[1:], self.ends[2:], strict=False)]


def played(workers: int, rounds: int, out: Path) -> list[float]:
    """The seconds of each round of a run by so many processes, which is left at `out`."""
    also = (f"run.rounds={rounds}", "run.trainer=loop", "run.chunk=8", "run.randomness=seeded")
    still = (f"run.evaluate_every={rounds}", f"run.checkpoint_every={rounds}")
    clock = Clock()
    with joined(workers) as ranks:
        train(load(None, (*SAME_FOR_ALL, *CNN.settings, *also, *still)), out, [clock], ranks)
    return clock.seconds()[:-1]  # the last one evaluates and saves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=2)
    asked = parser.parse_args()
    console, spread = Console(width=110), [noise.reference()]
    taken: dict[int, list[float]] = {count: [] for count in asked.workers}
    models = set()
    with TemporaryDirectory() as folder:
        for repeat in range(asked.repeats):
            for count in asked.workers:
                out = Path(folder) / f"{count} {repeat}"
                taken[count] += played(count, asked.rounds, out)
                models.add((out / "checkpoint.safetensors").read_bytes())
                spread.append(noise.reference())
    table = Table(title="CNN, cohort 50, one thread per process")
    for name in ("processes", "ms per round", "ratio"):
        table.add_column(name, justify="right")
    first = statistics.median(taken[asked.workers[0]])
    for count, seconds in taken.items():
        middle = statistics.median(seconds)
        table.add_row(str(count), f"{1e3 * middle:.0f}", f"{first / middle:.2f}")
    console.print(table)
    console.print(f"{len(models)} model from all of them")
    console.print(f"{noise.machine()}; {noise.spread(spread)}")


if __name__ == "__main__":
    main()
