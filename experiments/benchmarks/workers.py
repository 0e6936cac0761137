"""Seconds per round with several processes of this machine, against one: the CNN of `workloads`.

    python -m experiments.benchmarks.workers

Runs with one thread per process take turns, and must end in the same model.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from experiments.benchmarks.work import steadiness
from experiments.benchmarks.work.together import played
from experiments.benchmarks.work.workloads import CNN

SAME = ("run.trainer=loop", "run.chunk=2", "run.randomness=seeded")
"""Settings for which all runs end in the same model."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    console, spread = Console(width=110), [steadiness.reference()]
    taken: dict[int, list[float]] = {count: [] for count in arguments.workers}
    models = set()
    with TemporaryDirectory() as folder:
        for repeat in range(arguments.repeats):
            for count in arguments.workers:
                out = Path(folder) / f"{count} {repeat}"
                taken[count] += played(CNN, count, arguments.rounds, out, *SAME)
                models.add((out / "checkpoint.safetensors").read_bytes())
                spread.append(steadiness.reference())
    table = Table(title="CNN, cohort 50, one thread per process")
    for name in ("processes", "ms per round", "ratio"):
        table.add_column(name, justify="right")
    first = statistics.median(taken[arguments.workers[0]])
    for count, seconds in taken.items():
        middle = statistics.median(seconds)
        table.add_row(str(count), f"{1e3 * middle:.0f}", f"{first / middle:.2f}")
    console.print(table)
    console.print(f"{len(models)} model from all of them")
    console.print(f"{steadiness.machine()}; {steadiness.spread(spread)}")


if __name__ == "__main__":
    main()
