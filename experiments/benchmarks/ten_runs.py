"""Rounds under central DP of privfed, pfl-research and a bare PyTorch loop, in ten runs.

    python -m experiments.benchmarks.ten_runs --peers --runs 10 --table results.csv

In each run all contenders take turns, each in its best setting on two cores: one process of one
thread and, for networks, privfed in two processes; the others with one thread and with two. Privfed
chooses its training mode and trains in float32; networks are also trained with `run.precision =
"fast"` in two processes. The overhead of DP is the ratio of round times with and without DP, in one
process with alternating rounds. The median, the least and the greatest ratio of the runs are
printed; `pictures` draws them.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from experiments.benchmarks.peers.environments import DEFAULT, PFL, Environment, Unavailable
from experiments.benchmarks.work import steadiness
from experiments.benchmarks.work.bare import BareLoop
from experiments.benchmarks.work.measured import Measured, add_rows
from experiments.benchmarks.work.running import Running
from experiments.benchmarks.work.task import Task
from experiments.benchmarks.work.together import played
from experiments.benchmarks.work.workloads import NO_DP, WORKLOADS, Workload, task
from privfed.core.memory import keep_freed

OURS, FAST, BARE, ADDED = "privfed", 'privfed, "fast"', "bare PyTorch loop", "DP adds"
PRECISIONS = {OURS: "full", FAST: "fast"}
THREADS = (1, 2)


def turn(
    workload: Workload, work: Task, peer: Environment | None, rounds: int
) -> Iterator[Measured]:
    """Runs all contenders once; yields one row for each in each setting."""

    def row(way: str, setting: str, seconds: Sequence[float], private: bool = True) -> Measured:
        return Measured.of("ten_runs", workload.name, way, setting, private, seconds)

    for threads in THREADS:
        bare = BareLoop(work, private=True, threads=threads)
        bare.go(1)
        yield row(BARE, f"{threads} threads", bare.go(rounds))
        if peer:
            seconds = peer.play(work, rounds, threads, private=True).seconds
            yield row(peer.peer.name, f"{threads} threads", seconds)
    for way, precision in PRECISIONS.items():
        for workers in (1, *workload.workers) if way == OURS else workload.workers:
            with TemporaryDirectory() as folder:
                out = Path(folder) / "run"
                seconds = played(workload, workers, rounds, out, f"run.precision={precision}")
            yield row(way, f"{workers} processes", seconds)
    private, plain = alternating(workload, rounds)
    yield row(ADDED, "alternating", private)
    yield row(ADDED, "alternating", plain, private=False)


def alternating(workload: Workload, rounds: int) -> tuple[list[float], list[float]]:
    """Returns seconds of rounds with DP, and of rounds without it, in turn and the same mode."""
    setup = workload.setup("run.threads=1")
    mode = (f"run.trainer={setup.speed.way}", f"run.chunk={setup.speed.chunk}", "run.threads=1")
    with ExitStack() as stack:
        private = stack.enter_context(Running(setup))
        plain = stack.enter_context(Running(workload.setup(*mode, *NO_DP)))
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(rounds + 1):
            for run, seconds in zip((private, plain), times, strict=True):
                taken = run.go(1)
                seconds += taken if turn else []  # the first round warms up
    return times


def ratios(rows: Iterable[Measured]) -> dict[str, list[float]]:
    """Returns for each contender, run by run, its time over that of `OURS`, at its best setting.

    For `FAST` it is the time of `OURS` over its own, and for `ADDED` the time with DP over the time
    without. All rows are of one workload; `size` is the number of the run.

    >>> ours, bare = (
    ...     Measured("ten_runs", "CNN", way, "1", True, 1.0, 0.0, seconds, 9.0)
    ...     for way, seconds in ((OURS, 2.0), (BARE, 3.0))
    ... )
    >>> ratios([ours, bare, replace(bare, seconds=5.0)])
    {'bare PyTorch loop': [1.5]}
    """
    best: dict[float, dict[tuple[str, bool], float]] = defaultdict(dict)
    for row in rows:
        key = (row.way, row.private)
        best[row.size][key] = min(row.seconds, best[row.size].get(key, float("inf")))
    by_way = defaultdict(list)
    for times in best.values():
        for (way, private), seconds in times.items():
            if way == ADDED and private:
                by_way[way].append(seconds / times[ADDED, False])
            elif way == FAST:
                by_way[way].append(times[OURS, True] / seconds)
            elif way not in (OURS, ADDED):
                by_way[way].append(seconds / times[OURS, True])
    return dict(by_way)


def show(console: Console, rows: Sequence[Measured]) -> None:
    """Prints privfed's median round, and the range of all ratios, for each workload."""
    contenders = list(dict.fromkeys(row.way for row in rows if row.way != OURS))
    table = Table(title="median (least to greatest) ratio of each run")
    for name in ("", f"{OURS}, ms", *contenders):
        table.add_column(name, justify="left" if not name else "right")
    for work in dict.fromkeys(row.work for row in rows):
        here = [row for row in rows if row.work == work]
        by_run = defaultdict(list)
        for row in here:
            if row.way == OURS:
                by_run[row.size].append(row.seconds)
        ours = statistics.median(min(seconds) for seconds in by_run.values())
        by_way = ratios(here)
        cells = (_cell(name, by_way.get(name)) for name in contenders)
        table.add_row(work, f"{1e3 * ours:.1f}", *cells)
    console.print(table)


def _cell(name: str, each_run: list[float] | None) -> str:
    if not each_run:
        return ""
    values = (statistics.median(each_run), min(each_run), max(each_run))
    if name == ADDED:
        return "{:+.0f} % ({:+.0f} to {:+.0f})".format(*(100 * (value - 1) for value in values))
    return "{:.2f} ({:.2f} to {:.2f})".format(*values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds in each turn")
    parser.add_argument("--workloads", nargs="*", default=[work.name for work in WORKLOADS])
    parser.add_argument("--table", type=Path, help="append the measurements to this table (.csv)")
    parser.add_argument("--peers", nargs="?", type=Path, const=DEFAULT, help="see rounds")
    arguments = parser.parse_args()
    console = Console(width=110)
    keep_freed()  # as `privfed train` does; the bare loop benefits, too
    os.environ["PRIVFED_CACHE"] = ""  # each run chooses its mode anew
    peer = None
    if arguments.peers:
        try:
            peer = Environment.of(PFL, arguments.peers)
        except Unavailable as reason:
            console.print(f"{PFL.name} is skipped: {reason}")
    works = [work for work in WORKLOADS if work.name in arguments.workloads]
    tasks = [task(work, arguments.rounds + 1) for work in works]
    rows, spread = list[Measured](), [steadiness.reference()]
    for run in range(arguments.runs):
        for workload, work in zip(works, tasks, strict=True):
            rounds = arguments.rounds if workload.workers else 10 * arguments.rounds
            made = [replace(row, size=run) for row in turn(workload, work, peer, rounds)]
            spread.append(steadiness.reference())
            if arguments.table:
                add_rows(arguments.table, made)
            by_way = {name: f"{each[0]:.2f}" for name, each in ratios(made).items()}
            console.print(f"run {run + 1}, {workload.name}: {by_way}")
            rows += made
    show(console, rows)
    console.print(f"{steadiness.machine()}; {steadiness.spread(spread)}")


if __name__ == "__main__":
    main()
