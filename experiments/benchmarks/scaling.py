"""The growth of privfed's rounds: time by cohort, local steps and model size, and memory.

    python -m experiments.benchmarks.scaling --table growth.csv

Time must be linear in the cohort and in local steps, for any population size. Memory must be flat
in the cohort; each point is measured in a separate process. Then a population of a million clients
is measured.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments.benchmarks.work import memory, steadiness
from experiments.benchmarks.work.growth import Growth, rounded
from experiments.benchmarks.work.measured import Measured, add_rows
from experiments.benchmarks.work.running import Running
from experiments.benchmarks.work.workloads import LOGISTIC, MANY, Workload
from privfed.core.streams import Streams

STACKED = ("run.trainer=stacked", "run.chunk=32")
"""Settings shared by all points, so that only x changes."""
CLIENTS = 12_000
MLP = LOGISTIC.with_("model.name=mlp", "cohort.size=50", "run.trainer=auto")


def by_cohort(sizes: Sequence[int]) -> list[tuple[float, Workload]]:
    return [(size, LOGISTIC.with_(*STACKED, f"cohort.size={size}")) for size in sizes]


def by_steps(epochs: Sequence[int]) -> list[tuple[float, Workload]]:
    """Returns workloads by local steps: three steps per epoch for most clients."""
    return [(3 * n, LOGISTIC.with_(*STACKED, f"client.epochs={n}")) for n in epochs]


def by_model(widths: Sequence[int]) -> list[tuple[float, Workload]]:
    """Returns workloads by the width of one hidden layer: 71 parameters per unit, and ten."""
    return [(71 * width + 10, MLP.with_(f"model.hidden=[{width}]")) for width in widths]


def grown(what: str, points: list[tuple[float, Workload]], repeats: int) -> Growth:
    """Returns seconds per round at each point, all in turn."""
    with ExitStack() as stack:
        runs = [stack.enter_context(Running(work.setup())) for _, work in points]
        for run in runs:
            run.go(2)
        taken = [[run.go()[0] for run in runs] for _ in range(repeats)]
    quartiles = [statistics.quantiles(times, n=4) for times in zip(*taken, strict=True)]
    low, middle, high = zip(*quartiles, strict=True)
    return Growth(what, tuple(x for x, _ in points), low, middle, high)


def rows_of(growth: Growth) -> Iterator[Measured]:
    """Yields the measurements as rows of the table."""
    times = zip(growth.xs, growth.low, growth.seconds, growth.high, strict=True)
    for x, low, middle, high in times:
        way, setting = "privfed", "1 process of 1"
        yield Measured("scaling", growth.what, way, setting, True, x, low, middle, high)


def memory_of(cohort: int, clients: int) -> tuple[float, float]:
    """Returns MB of this process before, and at most during, two rounds of a model of 36,362
    parameters.
    """
    work = MLP.with_(f"data.clients={clients}", f"cohort.size={cohort}", "model.hidden=[512]")
    with Running(work.with_(*STACKED).setup()) as run:
        run.go()
        memory.forget_peak()
        before = memory.peak() / 1e6
        run.go(2)
        return before, memory.peak() / 1e6


def apart(cohort: int, clients: int) -> tuple[float, float]:
    """Returns the result of `memory_of`, called in a new process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(memory_of, cohort, clients).result()


def crowd(clients: int, draws: int) -> tuple[float, float, float]:
    """Returns seconds to set up `clients` clients, to sample a cohort (median), and of a round."""
    began = time.perf_counter()
    setup = MANY.with_(f"data.clients={clients}").setup()
    ready = time.perf_counter() - began
    population, streams = setup.federation.population(), Streams(0)
    times = []
    for t in range(draws):
        began = time.perf_counter()
        setup.algorithm.sampler.sample(t, clients, population, streams)
        times.append(time.perf_counter() - began)
    with Running(setup) as run:
        return ready, statistics.median(times), statistics.median(run.go(draws))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--clients", type=int, default=1_000_000, help="of the large population")
    parser.add_argument("--largest", type=int, default=10_000, help="the largest cohort, of memory")
    parser.add_argument("--table", type=Path, help="add how time grows to this table (.csv)")
    arguments = parser.parse_args()
    console, spread = Console(width=110), [steadiness.reference()]
    growths = []
    for what, points in (
        ("clients per cohort", by_cohort([25, 50, 100, 200, 400, 800])),
        ("local steps", by_steps([1, 2, 4, 8, 16])),
        ("model parameters", by_model([16, 64, 256, 1024, 2048])),
    ):
        growths.append(grown(what, points, arguments.repeats))
        spread.append(steadiness.reference())
    table = Table(title=f"ms per round, one thread, medians of {arguments.repeats}")
    for name in ("grows with", "at", "", "ms per unit", "off a line", "exponent"):
        table.add_column(name, justify="left" if name in ("grows with", "at") else "right")
    for growth in growths:
        places = " ".join(f"{x:,g}" if x < 1e5 else f"{x:,.0f}" for x in growth.xs)
        times = " ".join(rounded(1e3 * value) for value in growth.seconds)
        line = growth.line
        cells = rounded(1e3 * line.slope), f"{100 * line.std:.0f} %", f"{line.exponent:.2f}"
        table.add_row(growth.what, places, times, *cells)
    console.print(table)
    if arguments.table:
        add_rows(arguments.table, (row for growth in growths for row in rows_of(growth)))
    held = {n: apart(n, CLIENTS) for n in (100, 1000, arguments.largest)}
    listed = ", ".join(f"{n:,}: {most:.0f} MB ({start:.0f})" for n, (start, most) in held.items())
    ratio, rows = held[arguments.largest][1] / held[100][1], arguments.largest * 36_362 * 4 / 1e6
    console.print(f"memory at most (before the round), by cohort: {listed}")
    console.print(f"that is {ratio:.2f} x (aim: at most 1.1); its rows would be {rows:,.0f} MB")
    ready, drawn, round_ = crowd(arguments.clients, 7)
    console.print(
        f"{arguments.clients:,} clients: set up in {ready:.1f} s, a cohort of 100 drawn in "
        f"{1e3 * drawn:.1f} ms, a round takes {1e3 * round_:.1f} ms"
    )
    spread.append(steadiness.reference())
    console.print(f"{steadiness.machine()}; {steadiness.spread(spread)}")


if __name__ == "__main__":
    main()
