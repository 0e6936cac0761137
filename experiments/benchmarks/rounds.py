"""Seconds per round: privfed, a bare PyTorch loop, and other frameworks, on the same work.

    python -m experiments.benchmarks.rounds --peers          # installs the peers from PyPI

Four workloads (`workloads`), one epoch of batches of 10, central DP. All contenders take turns, so
that noise of the machine affects all alike. Before that, all train the same cohorts in whole-client
batches without noise, without any randomness: equal losses show that the arithmetic is the same.
Privfed's rounds are those of a run, charged and stored durably; the others store nothing.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from rich.table import Table

from experiments.benchmarks.peers.environments import DEFAULT, PEERS, Environment, Unavailable
from experiments.benchmarks.work import steadiness
from experiments.benchmarks.work.bare import BareLoop
from experiments.benchmarks.work.measured import Measured, add_rows
from experiments.benchmarks.work.running import Running
from experiments.benchmarks.work.task import Task
from experiments.benchmarks.work.together import played
from experiments.benchmarks.work.workloads import NO_DP, WORKLOADS, Workload, task
from privfed.core.memory import keep_freed

WHOLE = ("client.batch_size=100000", "run.randomness=seeded", *NO_DP)
"""Settings without randomness: every client's examples in one batch, and no noise."""
TARGETS = {("logistic", "pfl"): 10.0, ("logistic", "Flower"): 100.0, ("CNN", "pfl"): 1.5}
COHORTS, EQUAL = 10, 3
TURN = 5
"""Number of consecutive rounds per turn."""
BARE = "bare loop"


@dataclass
class Way:
    """A contender, which runs rounds and records their times, turn by turn."""

    name: str
    threads: int
    private: bool
    go: Callable[[int], list[float]]
    processes: int = 1
    turns: list[list[float]] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        return [second for turn in self.turns for second in turn]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def measured(self, workload: Workload) -> Measured:
        """Returns the measured times as a row of the table."""
        work = f"{workload.name}, cohort {workload.cohort}"
        return Measured.of("rounds", work, self.name, self.setting, self.private, self.seconds)

    @property
    def setting(self) -> str:
        """The cores that it uses."""
        plural = "" if self.processes == 1 else "es"
        return f"{self.processes} process{plural} of {self.threads}"


def losses(workload: Workload, peers: list[Environment]) -> dict[str, float]:
    """Returns each contender's loss after the same rounds of the same arithmetic."""
    work = task(workload, COHORTS, *WHOLE)
    bare = BareLoop(work, private=False, threads=1)
    bare.go(EQUAL)
    losses = {BARE: bare.loss()}
    for trainer in workload.trainers:
        with Running(workload.setup(*WHOLE, f"run.trainer={trainer}")) as run:
            run.go(EQUAL)
            module = work.module()
            torch.nn.utils.vector_to_parameters(run.state.params, module.parameters())
            losses[f"privfed {trainer}"] = work.loss(module)
    for peer in peers:
        losses[peer.peer.name] = peer.play(work, EQUAL - 1, 1, private=False).loss
    return losses


def contenders(workload: Workload, work: Task, threads: int, stack: ExitStack) -> list[Way]:
    """Returns the contenders that run in this process."""

    def privfed_way(name: str, *overrides: str, private: bool = True) -> Way:
        setup = workload.setup(*overrides, f"run.threads={threads}")
        run = stack.enter_context(Running(setup))
        speed = setup.speed
        chosen = f"stacked by {speed.chunk}" if speed.way == "stacked" else "loop"
        return Way(f"privfed{name}, {chosen}", threads, private, run.go)

    ways = [
        privfed_way(" auto"),
        privfed_way(" auto", *NO_DP, private=False),
        *(privfed_way("", f"run.trainer={trainer}") for trainer in workload.trainers),
        privfed_way(" mixed precision", "run.precision=mixed"),
        privfed_way(" precision fast", "run.precision=fast"),
    ]
    bare = ((private, BareLoop(work, private, threads)) for private in (True, False))
    return [*ways, *(Way(BARE, threads, private, loop.go) for private, loop in bare)]


def by_workers(workload: Workload, workers: int, stack: ExitStack) -> list[Way]:
    """Returns privfed in `workers` processes of one thread each, as separate runs like those of
    peers.
    """
    folder = Path(stack.enter_context(TemporaryDirectory()))

    def way(*overrides: str, private: bool) -> Way:
        def go(rounds: int) -> list[float]:
            out = folder / f"{len(list(folder.iterdir()))}"
            return played(workload, workers, rounds, out, *overrides)

        return Way("privfed auto", 1, private, go, workers)

    fast = replace(way("run.precision=fast", private=True), name="privfed precision fast")
    return [way(private=True), way(*NO_DP, private=False), fast]


def timed(
    workload: Workload, peers: list[Environment], rounds: int, repeats: int, threads: list[int]
) -> tuple[list[Way], list[float], dict[str, float]]:
    """Runs all contenders in turn; returns them, the reference times, and the peers' start-up
    times.
    """
    work, spread, starts = task(workload, COHORTS), [], {}
    with ExitStack() as stack:
        ways = [way for n in threads for way in contenders(workload, work, n, stack)]
        apart = [way for n in workload.workers for way in by_workers(workload, n, stack)]
        for peer in peers:
            for n in sorted({*threads} & {*peer.peer.threads}):

                def go(rounds: int, peer: Environment = peer, n: int = n) -> list[float]:
                    took = peer.play(work, min(rounds, peer.peer.rounds), n, private=True)
                    starts[peer.peer.name] = took.start
                    return took.seconds

                apart.append(Way(peer.peer.name, n, True, go))
        for _ in range(repeats):
            for _ in range(math.ceil(rounds / TURN)):
                for way in ways:
                    way.go(1)  # warm-up after another contender; a peer does so each time
                    way.turns.append(way.go(min(rounds, TURN)))
            for way in apart:
                spread.append(steadiness.reference())
                way.turns.append(way.go(rounds))
            spread.append(steadiness.reference())
    return [*ways, *apart], spread, starts


def show(console: Console, workload: Workload, ways: list[Way]) -> None:
    """Prints medians, and ratios to the best of privfed's automatic settings under DP."""
    best = fastest(ways, "privfed auto")
    table = Table(title=f"{workload.name}: ms per round; ratio to {best.name}, {best.setting}")
    columns = ("way", "threads", "DP", "median", "25 %", "75 %", "ratio")
    for name in columns:
        table.add_column(name, justify="left" if name == "way" else "right")
    for way in sorted(ways, key=lambda way: (not way.private, way.median)):
        low, _, high = statistics.quantiles(way.seconds, n=4)
        cells = [f"{1e3 * value:.1f}" for value in (way.median, low, high)]
        ratio = f"{way.median / best.median:.2f}"
        cores = f"{way.processes} x {way.threads}" if way.processes > 1 else str(way.threads)
        table.add_row(way.name, cores, "yes" if way.private else "no", *cells, ratio)
    console.print(table)


def fastest(ways: list[Way], name: str, private: bool = True) -> Way:
    """Returns the fastest setting of the contenders with this name."""
    return min(
        (way for way in ways if way.name.startswith(name) and way.private == private),
        key=lambda way: way.median,
    )


def verdicts(workload: Workload, ways: list[Way]) -> list[str]:
    """Returns targets and results, each framework with its own best number of threads."""
    ours, quick = fastest(ways, "privfed auto"), fastest(ways, "privfed precision fast")
    lines = [f"precision fast: {ours.median / quick.median:.2f} x as fast as full precision"]
    for name in (BARE, *(peer.name for peer in PEERS)):
        if not any(way.name == name for way in ways):
            continue
        theirs = fastest(ways, name)
        target = TARGETS.get((workload.name, name.partition(" ")[0].partition("-")[0]), 1.0)
        ratio = theirs.median / ours.median
        lines.append(f"{ratio:.2f} x as fast as {name} (aim: {target:g})")
    lines.append(f"DP costs {100 * (privacy(ways, ours) - 1):+.0f} % (aim: at most 10 %)")
    return [f"{workload.name}: {line}" for line in lines]


def privacy(ways: list[Way], ours: Way) -> float:
    """Returns the cost of DP in the setting of `ours`: the median ratio of consecutive turns."""
    (plain,) = (
        way
        for way in ways
        if way.name.startswith("privfed auto") and way.setting == ours.setting and not way.private
    )
    return statistics.median(
        statistics.median(private) / statistics.median(bare)
        for private, bare in zip(ours.turns, plain.turns, strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--workloads", nargs="*", default=[w.name for w in WORKLOADS])
    parser.add_argument("--table", type=Path, help="add what was measured to this table (.csv)")
    parser.add_argument(
        "--peers",
        nargs="?",
        type=Path,
        const=DEFAULT,
        help=f"compare with peers in environments in this folder, made if need be ({DEFAULT})",
    )
    arguments = parser.parse_args()
    console = Console(width=110)
    keep_freed()  # as `privfed train` does; the bare loop benefits, too
    peers = []
    for peer in PEERS if arguments.peers else ():
        try:
            peers.append(Environment.of(peer, arguments.peers))
        except Unavailable as reason:
            console.print(f"{peer.name} is skipped: {reason}")
    if not arguments.peers:
        console.print("peers are skipped: ask for them by --peers")
    for workload in WORKLOADS:
        if workload.name not in arguments.workloads:
            continue
        console.print(f"{workload.name}: losses after {EQUAL} rounds in which nothing is random")
        for name, loss in losses(workload, peers).items():
            console.print(f"  {name:<20} {loss:.7f}")
        ways, spread, starts = timed(
            workload, peers, workload.rounds, arguments.repeats, arguments.threads
        )
        show(console, workload, ways)
        if arguments.table:
            add_rows(arguments.table, (way.measured(workload) for way in ways))
        for line in verdicts(workload, ways):
            console.print(line)
        for name, start in starts.items():
            console.print(f"{workload.name}: {name} takes {start:.1f} s to the end of round 1")
        console.print(f"{steadiness.machine()}; {steadiness.spread(spread)}\n")


if __name__ == "__main__":
    main()
