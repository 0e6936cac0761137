"""The speed and memory of aggregation rules, next to ByzFL's and to lean plain PyTorch.

    pip install --no-deps byzfl==0.0.11
    python -m experiments.benchmarks.aggregation        # n = 20 and 100, d = 100,000 and 1,000,000

All use the same float32 rows and take turns in one process. A time is the median of several turns
after one warm-up, a ratio the median of the ratios within a turn. On a busy machine `--clock cpu
--threads 1` excludes the time of other programs. Memory is the peak of a call beyond the rows, in
multiples of these, in a separate process. ByzFL's nearest-neighbour mixing copies every row's
neighbours (32 GB for 100 rows of a million numbers), and runs out of memory here. Its
minimum-diameter averaging tries all subsets, so it has 20 rows.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from experiments.benchmarks.work.contenders import RULES, Contenders
from experiments.benchmarks.work.lean_rules import Rule
from experiments.benchmarks.work.steadiness import machine
from experiments.peers import byzfl

LIMIT, PATIENCE = 16 * 2**30, 120.0
WHO = ("ours", "theirs", "lean")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
Result = TypeVar("Result")


@dataclass(frozen=True)
class Case:
    """One rule on n rows of d numbers, a fifth of them Byzantine."""

    name: str
    n: int
    d: int
    threads: int
    clock: str = "wall"

    @property
    def f(self) -> int:
        return self.n // 5

    @property
    def contenders(self) -> Contenders:
        return RULES[self.name]

    def rows(self) -> Tensor:
        """Returns random rows, the Byzantine ones last, and sets this process up for them."""
        torch.set_num_threads(self.threads)
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
        rows = torch.randn(self.n, self.d, generator=torch.Generator().manual_seed(0))
        rows[-self.f :] += 3.0
        return rows

    def rule(self, who: str) -> Rule | None:
        made: Callable[[int], Rule] | None = getattr(self.contenders, who)
        return made(self.f) if made else None

    def fresh(self, rows: Tensor, who: str) -> Tensor:
        """Returns the rows for `who`: a copy if the rule writes into them."""
        return rows.clone() if self.contenders.writes and who == "theirs" else rows


def times(case: Case, turns: int) -> dict[str, list[float]]:
    """Returns the seconds of each turn by contender; contenders that run out of memory are left
    out.
    """
    rows = case.rows()
    rules = {who: rule for who in WHO if (rule := case.rule(who))}
    taken: dict[str, list[float]] = {who: [] for who in rules}
    clock = CLOCKS[case.clock]
    began = time.perf_counter()
    for turn in range(turns + 1):
        for who, rule in list(rules.items()):
            mine = case.fresh(rows, who)
            start = clock()
            try:
                rule(mine)
            except (RuntimeError, MemoryError):
                del rules[who], taken[who]
                continue
            taken[who] += [clock() - start] if turn else []
        if turn and time.perf_counter() - began > PATIENCE:
            break
    return taken


def memory(case: Case, who: str) -> float:
    """Returns the peak memory of one call, in multiples of the rows; infinite if it does not
    suffice.
    """
    rows, rule = case.rows(), case.rule(who)
    assert rule is not None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        rule(rows)
    except (RuntimeError, MemoryError):
        return float("inf")
    scale = 1024 if sys.platform == "linux" else 1
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * scale / rows.nbytes


def apart(work: Callable[[], Result]) -> Result:
    """Returns the result of `work`, called in a new process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(work).result()


def ratio(taken: dict[str, list[float]], who: str) -> str:
    """Returns the ratio of another contender's times to ours: the median, and the range."""
    if not taken.get(who):
        return ""
    each = [theirs / ours for ours, theirs in zip(taken["ours"], taken[who], strict=True)]
    return f"{statistics.median(each):.1f} ({min(each):.1f} to {max(each):.1f})"


def milliseconds(taken: dict[str, list[float]], who: str) -> str:
    return f"{1e3 * statistics.median(taken[who]):.1f}" if taken.get(who) else "-"


def add(table: Table, case: Case, turns: int, measure_memory: bool) -> None:
    taken = apart(partial(times, case, turns))
    row = [case.name, *(milliseconds(taken, who) for who in WHO)]
    row += [ratio(taken, who) for who in WHO[1:]]
    if measure_memory:
        row += [f"{apart(partial(memory, case, who)):.2f}" for who in WHO[:2]]
    table.add_row(*row)


def table_of(n: int, d: int, arguments: argparse.Namespace) -> Table:
    """Measures all rules on n rows of d numbers."""
    table = Table(title=f"{n} rows of {d:,} numbers, {n // 5} Byzantine; float32, milliseconds")
    heads = ["rule", "ours", "ByzFL", "lean", "ByzFL / ours", "lean / ours"]
    heads += ["our memory", "ByzFL's"] if arguments.memory else []
    for heading in heads:
        table.add_column(heading, justify="left" if heading == "rule" else "right", no_wrap=True)
    for name, contenders in RULES.items():
        if n > max(contenders.most_rows, min(arguments.clients)):
            continue
        if not arguments.rules or name in arguments.rules:
            rows = min(n, contenders.most_rows)
            add(
                table,
                Case(name, rows, d, arguments.threads, arguments.clock),
                arguments.turns,
                arguments.memory,
            )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--dimension", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=[*CLOCKS], default="wall", help="cpu: of this process")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--rules", nargs="*", help="some of them, by name")
    parser.add_argument("--memory", action="store_true", help="measure it, too")
    arguments = parser.parse_args()
    console = Console(width=110)
    if byzfl("aggregators") is None:
        raise SystemExit("ByzFL is not installed: pip install --no-deps byzfl==0.0.11")
    console.print(
        f"{machine()}; {arguments.threads} threads, {arguments.clock} time, {arguments.turns} turns"
    )
    for n in arguments.clients:
        for d in arguments.dimension:
            console.print(table_of(n, d, arguments))
    console.print("ratios: median (least to most) over turns", end="")
    console.print("; memory: the most beyond the rows, in multiples" if arguments.memory else "")


if __name__ == "__main__":
    main()
