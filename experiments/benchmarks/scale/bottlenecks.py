"""Bytes, seconds and memory for growing populations, cohorts and models, with the bottlenecks.

    python -m experiments.benchmarks.scale.bottlenecks --clients 1000000 --parameters 1e8

Each line is measured in a separate process. Clients' features are in a memory-mapped Arrow file;
its resident pages can be reclaimed by the system, and are not counted as memory.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from experiments.benchmarks.scale.clients_on_disk import workload, write
from experiments.benchmarks.scale.phases import Phases
from experiments.benchmarks.work import memory, steadiness
from experiments.benchmarks.work.running import Running
from experiments.benchmarks.work.workloads import Workload

PEOPLE = ((10_000, 1_000), (100_000, 10_000), (1_000_000, 10_000), (1_000_000, 100_000))
"""Clients in the file, and expected cohorts."""
MODELS = (1_000_000, 10_000_000, 30_000_000, 100_000_000)
MASKS = "secure.protocol=masks"
MOST_MASKED = 30_000_000
"""Number of parameters up to which masked sums are measured, too."""
COHORT = 4
"""Number of clients in a round of a long model: memory does not grow with it."""


@dataclass(frozen=True)
class Scale:
    """The measurements of one line: `held` before the first round and `most` in a round, in
    bytes.
    """

    what: str
    clients: int
    cohort: int
    parameters: int
    on_disk: int
    setup: float
    seconds: float
    held: int
    most: int
    parts: dict[str, float]
    """Fractions of a round's seconds by phase, in per cent."""


def measured(
    what: str, work: Workload, clients: int, cohort: int, rounds: int, on_disk: int = 0
) -> Scale:
    """Returns the median round of `work`, in this process, after one warm-up round."""
    began = time.perf_counter()
    setup = work.setup()
    ready = time.perf_counter() - began
    with Running(setup) as run:
        run.go()
        held, phases = memory.anonymous(), Phases()
        with memory.AnonymousPeak() as peak, phases.watched():
            taken = run.go(rounds)
    parts = phases.parts(sum(taken))
    length, median = len(setup.network.initial_params), statistics.median(taken)
    size = on_disk or 4 * length
    return Scale(what, clients, cohort, length, size, ready, median, held, peak.most, parts)


def population(clients: int, cohort: int, rounds: int) -> Scale:
    """Runs rounds over clients on disk."""
    with TemporaryDirectory() as folder:
        path, public = Path(folder) / "clients", Path(folder) / "public"
        size = write(path, clients)
        write(public, 200, seed=1)
        work = workload(path, public, clients, cohort)
        return measured("clients", work, clients, cohort, rounds, size)


def long_model(parameters: int, rounds: int, *settings: str) -> Scale:
    """Runs rounds of a long model, with a checkpoint after each, and one local step per client."""
    width = math.isqrt(parameters)
    work = Workload(
        "long",
        (
            "data.source=experiments.benchmarks.work.synthetic:Many",
            "data.clients=64",
            f"cohort.size={COHORT}",
            "client.lr=0.1",
            "model.name=mlp",
            f"model.hidden=[{width},{width}]",
            "run.checkpoint_every=1",
            "run.threads=1",
            *settings,
        ),
        1,
    )
    return measured("masked sum" if MASKS in settings else "model", work, 64, COHORT, rounds)


def apart(measure: Callable[..., Scale], *arguments: object) -> Scale:
    """Runs `measure` in a new process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(measure, *arguments).result()


def lines(clients: int, parameters: int, rounds: int) -> list[Scale]:
    """Returns all lines up to these numbers of clients and parameters."""
    models = [d for d in MODELS if d <= parameters]
    scales = [apart(population, n, size, rounds) for n, size in PEOPLE if n <= clients]
    scales += [apart(long_model, d, rounds) for d in models]
    return scales + [apart(long_model, d, rounds, MASKS) for d in models if d <= MOST_MASKED]


def tabulated(scales: list[Scale]) -> Table:
    """Returns the lines as a table, with the phases of at least 5 % of a round."""
    table = Table(title="a round: bytes on disk, seconds, memory, and what takes them")
    for name in ("what", "of"):
        table.add_column(name)
    for name in ("MB on disk", "setup s", "round s", "MB before", "MB at most"):
        table.add_column(name, justify="right")
    table.add_column("copies", justify="right")
    table.add_column("bottleneck, then others")
    for scale in scales:
        of = f"{scale.clients:,}, {scale.cohort:,} drawn, d = {scale.parameters:,}"
        copies = (scale.most - scale.held) / (4 * scale.parameters)
        ranked = sorted(scale.parts.items(), key=lambda part: -part[1])
        shares = ", ".join(f"{name} {part:.0f} %" for name, part in ranked if part >= 5)
        table.add_row(
            *(scale.what, of, f"{scale.on_disk / 1e6:,.0f}", f"{scale.setup:.1f}"),
            *(f"{scale.seconds:.2f}", f"{scale.held / 1e6:,.0f}", f"{scale.most / 1e6:,.0f}"),
            *(f"{copies:.1f}" if scale.what != "clients" else "", shares),
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--parameters", type=float, default=1e8)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    console, spread = Console(width=140), [steadiness.reference()]
    console.print(tabulated(lines(arguments.clients, int(arguments.parameters), arguments.rounds)))
    console.print(
        "MB before: held between rounds, Python and its libraries (about 320 MB) among them. "
        "copies: what a round takes beyond, in vectors of float32 numbers"
    )
    spread.append(steadiness.reference())
    console.print(f"{steadiness.machine()}; {steadiness.spread(spread)}")


if __name__ == "__main__":
    main()
