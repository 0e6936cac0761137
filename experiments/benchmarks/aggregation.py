"""How fast rules aggregate, and in how much memory, beside ByzFL's implementations of the same.

    pip install --no-deps byzfl==0.0.11
    python -m experiments.benchmarks.aggregation                # n = 100, d = 1,000,000

The same float32 rows for both, each measurement in a process of its own with the same threads: the
median of several runs after one to warm up, and the largest memory that a run needs beyond the rows
themselves, as multiples of these. ByzFL's nearest-neighbour mixing copies every row's neighbours
(32 GB at this size): where memory is not enough, it is compared at a tenth of the dimension.
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

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from defenses.before.nnm import NearestNeighbourMixing
from defenses.by_sums.centered_clipping import CenteredClipping
from defenses.by_sums.geometric_median import GeometricMedian
from defenses.on_rows.krum import Krum, MultiKrum
from defenses.on_rows.mda import MinimumDiameter
from defenses.on_rows.mean_around_median import MeanAroundMedian
from defenses.on_rows.median import Median
from defenses.on_rows.trimmed_mean import TrimmedMean
from defenses.weighing import mixtures
from experiments.peers import byzfl

REPEATS, LIMIT = 5, 16 * 2**30
Rule = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Took:
    """Median seconds, and memory beyond the rows in multiples of them; infinite where it failed."""

    seconds: float
    memory: float


def rules(f: int) -> dict[str, tuple[Rule, Callable[[], Rule]]]:
    """Ours, and how to make theirs, by name."""
    return {
        "geometric median": (
            lambda x: GeometricMedian()(x, f),
            lambda: byzfl("aggregators").GeometricMedian(nu=0.1, T=3),
        ),
        "trimmed mean": (
            lambda x: TrimmedMean()(x, f),
            lambda: byzfl("aggregators").TrMean(f),
        ),
        "median": (lambda x: Median()(x, f), lambda: byzfl("aggregators").Median()),
        "mean around median": (
            lambda x: MeanAroundMedian()(x, f),
            lambda: byzfl("aggregators").Meamed(f),
        ),
        "Krum": (lambda x: Krum()(x, f), lambda: byzfl("aggregators").Krum(f)),
        "Multi-Krum": (lambda x: MultiKrum()(x, f), lambda: byzfl("aggregators").MultiKrum(f)),
        "centered clipping": (
            lambda x: CenteredClipping(radius=100.0).on_rows(x),
            lambda: byzfl("aggregators").CenteredClipping(tau=100.0),
        ),
        "nearest-neighbour mixing": (
            lambda x: mixtures(x, f, (NearestNeighbourMixing(),)),
            lambda: byzfl("preaggregators").NNM(f),
        ),
        "MDA": (lambda x: MinimumDiameter()(x, f), lambda: byzfl("aggregators").MDA(f)),
    }


def measure(name: str, ours: bool, n: int, d: int, f: int, threads: int) -> Took:
    """One rule in this process."""
    torch.set_num_threads(threads)
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    rows = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    rows[-f:] += 3.0
    rule = rules(f)[name][0] if ours else rules(f)[name][1]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    taken = []
    try:
        for _ in range(REPEATS + 1):
            began = time.perf_counter()
            rule(rows)
            taken.append(time.perf_counter() - began)
    except (RuntimeError, MemoryError):
        return Took(float("inf"), float("inf"))
    scale = 1024 if sys.platform == "linux" else 1
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * scale
    return Took(statistics.median(taken[1:]), more / rows.nbytes)


def apart(name: str, ours: bool, n: int, d: int, f: int, threads: int) -> Took:
    """`measure` in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(measure, name, ours, n, d, f, threads).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--dimension", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rules", nargs="*", help="some of them, by name")
    asked = parser.parse_args()
    console = Console(width=110)
    if byzfl("aggregators") is None:
        raise SystemExit("ByzFL is not installed: pip install --no-deps byzfl==0.0.11")
    table = Table(title=f"{asked.threads} threads, float32")
    for heading in ("rule", "n, f, d", "ours", "ByzFL", "ratio", "our memory", "ByzFL's"):
        table.add_column(heading, justify="left" if heading == "rule" else "right", no_wrap=True)
    for name in rules(1):
        if asked.rules and name not in asked.rules:
            continue
        n, d = (20, asked.dimension // 10) if name == "MDA" else (asked.clients, asked.dimension)
        f = 4 if name == "MDA" else n // 5
        add(table, name, n, d, f, asked.threads)
    console.print(table)
    console.print("memory: at its largest, beyond the rows, in multiples of the rows")


def add(table: Table, name: str, n: int, d: int, f: int, threads: int) -> None:
    ours, theirs = (apart(name, ours_first, n, d, f, threads) for ours_first in (True, False))
    failed = theirs.seconds == float("inf")
    table.add_row(
        name,
        f"{n}, {f}, {d:,}",
        f"{ours.seconds:.3f} s",
        "out of memory" if failed else f"{theirs.seconds:.3f} s",
        "" if failed else f"{theirs.seconds / ours.seconds:.1f}",
        f"{ours.memory:.2f}",
        "" if failed else f"{theirs.memory:.2f}",
    )
    if failed and d > 100_000:
        add(table, name, n, d // 10, f, threads)


if __name__ == "__main__":
    main()
