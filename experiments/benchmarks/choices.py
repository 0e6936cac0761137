"""The training mode that a run chooses for itself, against the best of all modes.

    python -m experiments.benchmarks.choices --runs 20 [--busy]

Rounds of each mode and chunk size take turns, and each one's shortest round counts. In between, the
choice is measured anew, without remembered times. `--busy` keeps a second process busy during the
measurement. A line for each workload gives the time of the chosen mode over that of the best:
its median, its largest value, and in how many runs it was at most 1.1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from experiments.benchmarks.work import steadiness
from experiments.benchmarks.work.running import Running
from experiments.benchmarks.work.workloads import WORKLOADS, Workload
from privfed.client.trainer import Way
from privfed.core.memory import keep_freed

NEAR = 1.1
"""Largest accepted time of a chosen mode over that of the best."""
CHUNKS = (4, 8, 16, 32, 64, 128)
Mode = tuple[Way, int]


@dataclass(frozen=True)
class Choices:
    """Shortest seconds of a round in each mode, and the mode chosen in each run."""

    seconds: dict[Mode, float]
    chosen: list[Mode]

    @property
    def ratios(self) -> list[float]:
        """The time of each chosen mode over that of the best."""
        best = min(self.seconds.values())
        return [self.seconds[mode] / best for mode in self.chosen]

    def line(self) -> str:
        """Returns a line of text.

        >>> print(Choices({("loop", 8): 1.2, ("stacked", 8): 1.0}, [("loop", 8)]).line())
        chosen over best: median 1.20, largest 1.20; at most 1.1 in 0 of 1 (best: stacked 8)
        """
        near = sum(ratio <= NEAR for ratio in self.ratios)
        name, chunk = min(self.seconds, key=self.seconds.__getitem__)
        return (
            f"chosen over best: median {statistics.median(self.ratios):.2f}, largest "
            f"{max(self.ratios):.2f}; at most {NEAR} in {near} of {len(self.chosen)} (best: "
            f"{name} {chunk})"
        )


def measured(workload: Workload, runs: int, rounds: int, threads: int) -> Choices:
    """Returns the choices of `runs` runs, and `rounds` rounds of each mode between any two."""
    common = (f"run.threads={threads}",)
    modes: dict[Mode, Running] = {}
    seconds: dict[Mode, float] = {}
    chosen = []
    with ExitStack() as stack:

        def add(mode: Mode) -> None:
            name, chunk = mode
            setup = workload.setup(*common, f"run.trainer={name}", f"run.chunk={chunk}")
            modes[mode] = stack.enter_context(Running(setup))
            seconds[mode] = float("inf")

        add(("loop", 8))
        for chunk in CHUNKS:
            if chunk <= 2 * workload.cohort:
                add(("stacked", chunk))
        for _ in range(runs):
            speed = workload.setup(*common).speed
            mode = (speed.way, speed.chunk)
            chosen.append(mode)
            if mode not in modes:
                add(mode)
            for name, run in modes.items():
                seconds[name] = min(seconds[name], *run.go(rounds))
    return Choices(seconds, chosen)


@contextlib.contextmanager
def busy(wanted: bool) -> Iterator[None]:
    """Runs a second process that multiplies matrices during the context, if `wanted`."""
    loop = "import torch; torch.set_num_threads(1); a = torch.randn(500, 500)\nwhile True: a @ a"
    other = subprocess.Popen([sys.executable, "-c", loop]) if wanted else None
    try:
        yield
    finally:
        if other:
            other.kill()
            other.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2, help="rounds of each mode in each run")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workloads", nargs="*", default=[work.name for work in WORKLOADS])
    parser.add_argument(
        "--busy", action="store_true", help="run while a second process keeps a core busy"
    )
    arguments = parser.parse_args()
    keep_freed()
    os.environ["PRIVFED_CACHE"] = ""
    for workload in WORKLOADS:
        if workload.name in arguments.workloads:
            with busy(arguments.busy):
                choices = measured(workload, arguments.runs, arguments.rounds, arguments.threads)
            print(f"{workload.name}: {choices.line()}", flush=True)
            for (name, chunk), taken in sorted(choices.seconds.items(), key=lambda each: each[1]):
                times = choices.chosen.count((name, chunk))
                print(f"  {name} {chunk}: {1e3 * taken:.1f} ms a round, chosen {times} times")
    print(steadiness.machine())


if __name__ == "__main__":
    main()
