"""Compares stacked clients with one after the other on a device, and measures its utilisation.

    python -m experiments.benchmarks.device                  # a GPU if there is one
    python -m experiments.benchmarks.device --device cpu

A cohort of 100 trains two batches of 10 each, for models of 610 to a million parameters. Many
clients at once train a CNN and a transformer (`device_clients`), and a server works on rows
(`device_rules`). The capacity of the device is measured in the same run: a large matrix product,
and a copy in memory. A local step needs at least its products, and one read and write of the model.
The printed fractions refer to that minimum, so repeated moves or computations reduce them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from experiments.benchmarks.work import steadiness
from experiments.benchmarks.work.device_clients import CLIENTS, NETWORKS, many_clients
from experiments.benchmarks.work.device_rules import ROWS, rounds, server_work, timer
from experiments.benchmarks.work.workloads import LOGISTIC, Workload
from privfed.client.trainer import Way
from privfed.core.memory import keep_freed
from privfed.run.setup import Setup

COHORT, BATCH, STEPS, FEATURES, CLASSES = 100, 10, 2, 60, 10
HIDDEN: tuple[tuple[int, ...], ...] = ((), (128,), (1024,), (950, 950))
AIM = 5.0
_WHOLE = {"cpu": (1024, 1 << 24), "cuda": (8192, 1 << 28)}
"""Size of a matrix product, and length of a copy, that keep a device of that kind busy."""


def workload(hidden: tuple[int, ...], device: str) -> Workload:
    model = ("model.name=mlp", f"model.hidden={list(hidden)}") if hidden else ()
    each = BATCH * STEPS
    sizes = (f"data.size_min={each}", "data.size_mean=-9.0", f"data.clients={COHORT}")
    return LOGISTIC.with_(*sizes, *model, f"run.device={device}")


def products(hidden: tuple[int, ...]) -> int:
    """Multiplications and additions of one example: forward, and both gradients of each layer.

    >>> products(())  # nobody asks for the gradient of the input
    2400
    """
    widths = (FEATURES, *hidden, CLASSES)
    layers = [2 * a * b for a, b in pairwise(widths)]
    return 3 * sum(layers) - layers[0]


def seconds(device: torch.device, act: Callable[[], object], repeats: int) -> float:
    """Returns the median of `repeats` after one warm-up, with synchronisation of the device."""
    taken = []
    for _ in range(repeats + 1):
        _wait(device)
        began = time.perf_counter()
        act()
        _wait(device)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def limits(device: torch.device, repeats: int) -> tuple[float, float]:
    """Returns the device's capacity per second: operations of a product, and bytes read and
    written.
    """
    wide, long = _WHOLE[device.type]
    square, line = torch.rand(wide, wide, device=device), torch.rand(long, device=device)
    other = torch.empty_like(line)
    product = seconds(device, lambda: square @ square, repeats)
    copy = seconds(device, lambda: other.copy_(line), repeats)
    return 2 * wide**3 / product, 8 * long / copy


def train(setup: Setup, way: Way, chunk: int, number: int) -> torch.Tensor:
    """Returns the sum of the cohort's rows, computed chunk by chunk."""
    local = replace(setup.executor.trainer, way=way)
    total = torch.zeros_like(setup.network.initial_params)
    for start in range(0, COHORT, chunk):
        some = np.arange(start, min(start + chunk, COHORT))
        keys = setup.streams.at("shuffle", number, some)
        total += local.train(some, {"params": setup.network.initial_params}, None, keys)[0].sum(0)
    return total


def both(
    hidden: tuple[int, ...], device: str, threads: int, repeats: int
) -> tuple[Setup, float, float]:
    """Returns seconds of the cohort's training, stacked and one by one, in turn."""
    setup = workload(hidden, device).setup("run.trainer=stacked", f"run.threads={threads}")
    torch.set_num_threads(threads)
    where, chunk = setup.network.initial_params.device, setup.speed.chunk
    ways = partial(train, setup, "stacked", chunk), partial(train, setup, "loop", 1)
    taken = [[seconds(where, partial(way, number), 1) for way in ways] for number in range(repeats)]
    stacked, looped = (statistics.median(times) for times in zip(*taken, strict=True))
    return setup, stacked, looped


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def stacked_table(
    arguments: argparse.Namespace, limits: tuple[float, float]
) -> tuple[Table, float]:
    """Measures a cohort of 100 by the size of its model; returns the table and the least ratio."""
    title = f"ms of a cohort of {COHORT}, {STEPS} steps of {BATCH}"
    table = _table(
        title, ("parameters", "by", "stacked", "one by one", "ratio", "arithmetic", "memory")
    )
    slowest, steps = float("inf"), COHORT * STEPS
    for hidden in HIDDEN:
        setup, stacked, looped = both(
            hidden, arguments.device, arguments.threads, arguments.repeats
        )
        d = len(setup.network.initial_params)
        shares = (
            steps * BATCH * products(hidden) / stacked / limits[0],
            steps * 8 * d / stacked / limits[1],
        )
        slowest = min(slowest, looped / stacked)
        times = (f"{1e3 * taken:.2f}" for taken in (stacked, looped))
        ratio = f"{looped / stacked:.1f}"
        table.add_row(f"{d:,}", str(setup.speed.chunk), *times, ratio, *map(percent, shares))
    return table, slowest


def clients_table(arguments: argparse.Namespace, arithmetic: float) -> tuple[Table, float]:
    """Measures many clients at once; returns the table and the best ratio of the slowest
    network.
    """
    columns = ("network", "clients", "ms, stacked", "ms, one by one", "ratio", "arithmetic")
    table = _table("clients at once", (*columns, "MB a client"))
    kind, ratios = torch.device(arguments.device).type, []
    for work in NETWORKS:
        counted = many_clients(
            work, arguments.device, arguments.clients or CLIENTS[kind], arguments.repeats
        )
        ratios.append(max(many.ratio for many in counted))
        for many in counted:
            share = many.operations * many.clients / many.stacked / arithmetic
            times = (1e3 * many.stacked, 1e3 * many.alone * many.clients)
            cells = (*(f"{taken:.1f}" for taken in times), f"{many.ratio:.1f}", percent(share))
            held = f"{many.held / 1e6:.1f}" if many.held else "-"
            table.add_row(work.name, f"{many.clients:,}", *cells, held)
    return table, min(ratios)


def server_table(arguments: argparse.Namespace, memory: float) -> Table:
    """Measures rules, clipping, noise and masks."""
    device = torch.device(arguments.device)
    shape = ROWS[device.type]
    table = _table(f"{shape[0]} rows of {shape[1]:,}, and rounds", ("work", "ms", "memory", "aim"))
    timed = timer(lambda: _wait(device), arguments.repeats)
    for work in (*server_work(device, timed, shape), *rounds(arguments.device, arguments.repeats)):
        share = percent(work.least / work.seconds / memory) if work.least else "-"
        aim = f"{1e3 * work.aim:.0f}" if work.aim and device.type == "cuda" else "-"
        table.add_row(work.name, f"{1e3 * work.seconds:.2f}", share, aim)
    return table


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left")
    return table


def percent(share: float) -> str:
    """Formats a fraction in per cent.

    >>> percent(0.123)
    '12.3 %'
    """
    return f"{100 * share:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clients", type=int, nargs="*", help="how many are stacked")
    arguments = parser.parse_args()
    keep_freed()  # as a run does
    device, console = torch.device(arguments.device), Console(width=110)
    torch.set_num_threads(arguments.threads)
    measured = limits(device, arguments.repeats)
    card = device.type == "cuda"
    console.print(torch.cuda.get_device_name(device) if card else "no accelerator: CPU")
    console.print(
        f"the device: {measured[0] / 1e9:,.0f} GFLOP/s (float32 product), {measured[1] / 1e9:,.0f} "
        f"GB/s (copy); {arguments.threads} thread{'s' * (arguments.threads > 1)}"
    )
    table, slowest = stacked_table(arguments, measured)
    console.print(table)
    console.print(f"stacked is at least {slowest:.1f} x as fast as one by one")
    table, ratio = clients_table(arguments, measured[0])
    console.print(table)
    aim = f" (aim on a GPU: {AIM:.0f})" if card else ""
    console.print(f"at its best number of clients each network is {ratio:.1f} x as fast{aim}")
    console.print(server_table(arguments, measured[1]))
    console.print(steadiness.machine())


if __name__ == "__main__":
    main()
