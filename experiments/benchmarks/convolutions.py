"""Rounds of the CNN in full and in faster precision, against pfl-research, run by run.

    python -m experiments.benchmarks.convolutions --peers --runs 10

In each run all contenders take turns, each in its best setting on these cores: privfed with one
process and with two, of one thread each, and pfl-research with one thread and with two. Privfed's
"fast" is measured anew in each run, before its rounds. The ratio of each run, the least and the
greatest are printed.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from experiments.benchmarks.peers.environments import DEFAULT, PFL, Environment, Unavailable
from experiments.benchmarks.work import steadiness
from experiments.benchmarks.work.task import Task
from experiments.benchmarks.work.together import played
from experiments.benchmarks.work.workloads import CNN, task
from privfed.core.memory import keep_freed

AIMS = {"full": 1.25, "fast": 1.8}
"""Target speed relative to pfl-research for each precision, in every run."""
WORKERS = THREADS = (1, 2)
LOOP = ("run.trainer=loop",)
"""The setting that "auto" measures as faster for this model."""


@dataclass(frozen=True)
class Turn:
    """Milliseconds per round of pfl-research and of privfed in each precision, in one run."""

    peer: float
    ours: dict[str, float]

    def ratio(self, precision: str) -> float:
        """Returns privfed's speed relative to pfl-research."""
        return self.peer / self.ours[precision]


def turn(work: Task, peer: Environment, rounds: int) -> Turn:
    """Runs all contenders once, and returns each one's median round in its best setting."""
    ours = dict.fromkeys(AIMS, float("inf"))
    theirs = float("inf")
    for workers, threads in zip(WORKERS, THREADS, strict=True):
        seconds = peer.play(work, rounds, threads, private=True).seconds
        theirs = min(theirs, statistics.median(seconds))
        for precision in ours:
            with TemporaryDirectory() as folder:
                settings = (*LOOP, f"run.precision={precision}")
                seconds = played(CNN, workers, rounds, Path(folder) / "run", *settings)
            ours[precision] = min(ours[precision], statistics.median(seconds))
    return Turn(1e3 * theirs, {key: 1e3 * value for key, value in ours.items()})


def summary(turns: list[Turn]) -> list[str]:
    """Returns the smallest and largest ratio of each precision, and how many runs reach its target.

    >>> former = Turn(600.0, {"full": 400.0, "fast": 300.0})
    >>> latter = Turn(500.0, {"full": 420.0, "fast": 250.0})
    >>> print(*summary([former, latter]), sep="\\n")
    full: 1.19 to 1.50 x as fast as pfl-research, median 1.35; 1.25 x in 1 of 2 runs
    fast: 2.00 to 2.00 x as fast as pfl-research, median 2.00; 1.8 x in 2 of 2 runs
    """
    lines = []
    for precision, aim in AIMS.items():
        ratios = [turn.ratio(precision) for turn in turns]
        reached = sum(ratio >= aim for ratio in ratios)
        lines.append(
            f"{precision}: {min(ratios):.2f} to {max(ratios):.2f} x as fast as pfl-research, "
            f"median {statistics.median(ratios):.2f}; {aim:g} x in {reached} of {len(ratios)} runs"
        )
    return lines


def show(console: Console, turns: list[Turn]) -> None:
    """Prints every run's medians, and ratios to them."""
    table = Table(title="CNN: ms per round; times as fast as pfl-research in brackets")
    for name in ("run", PFL.name, *(f"privfed, {precision}" for precision in AIMS)):
        table.add_column(name, justify="right")
    for number, each in enumerate(turns, 1):
        cells = (f"{each.ours[name]:.0f} ({each.ratio(name):.2f} x)" for name in AIMS)
        table.add_row(str(number), f"{each.peer:.0f}", *cells)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--peers",
        nargs="?",
        type=Path,
        default=DEFAULT,
        const=DEFAULT,
        help=f"where the environment of pfl-research is, made if need be ({DEFAULT})",
    )
    arguments = parser.parse_args()
    console = Console(width=110)
    keep_freed()  # as `privfed train` does
    try:
        peer = Environment.of(PFL, arguments.peers)
        work, turns, spread = (
            task(CNN, arguments.rounds + 1),
            list[Turn](),
            [steadiness.reference()],
        )
        for _ in range(arguments.runs):
            turns.append(turn(work, peer, arguments.rounds))
            spread.append(steadiness.reference())
            ratios = (f"{name} {turns[-1].ratio(name):.2f} x" for name in AIMS)
            console.print(f"run {len(turns)}: {', '.join(ratios)}")
    except Unavailable as reason:
        raise SystemExit(f"{PFL.name} cannot be measured: {reason}") from reason
    show(console, turns)
    for line in summary(turns):
        console.print(line)
    console.print(f"{steadiness.machine()}; {steadiness.spread(spread)}")


if __name__ == "__main__":
    main()
