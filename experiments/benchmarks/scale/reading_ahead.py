"""Reading a chunk of clients ahead of training, against reading each step's examples on demand.

    python -m experiments.benchmarks.scale.reading_ahead --clients 200000

Rounds of one run take turns, with the file in the page cache, and again with its pages released
before every round, as for a file larger than memory.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.benchmarks.scale.clients_on_disk import workload, write
from experiments.benchmarks.work import steadiness
from experiments.benchmarks.work.running import Running
from privfed.client import executor
from privfed.client.batches import read_ahead
from privfed.core.vector import Indices
from privfed.data.federation import Federation
from privfed.data.pieces import Mapped, Pieces
from privfed.run.setup import Setup

Read = Callable[[Indices], tuple[Federation, Indices]]
Chunks = Iterator[tuple[Indices, tuple[Federation, Indices]]]
WIDTHS = {64: 1, 3072: 5}
"""Bytes of an example -> the factor by which there are fewer clients."""
_GIVE_BACK = 4
"""MADV_DONTNEED of `madvise(2)`."""


def by_step(chunks: Iterable[Indices], read: partial[tuple[Federation, Indices]]) -> Chunks:
    """Returns chunks without their examples, which a step reads when it needs them."""
    population: Federation = read.args[0]
    return ((chunk, (population, chunk)) for chunk in chunks)


def by_chunk(chunks: Iterable[Indices], read: Read) -> Chunks:
    """Returns chunks that the training thread reads when their turn comes."""
    return ((chunk, read(chunk)) for chunk in chunks)


WAYS = {"step by step": by_step, "chunk by chunk": by_chunk, "ahead": read_ahead}


def give_back(setup: Setup, path: Path) -> None:
    """Releases the system's cached pages of the mapped file at `path`."""
    x = setup.federation.examples.x
    if isinstance(x, Mapped) and isinstance(x.store, Pieces):
        page = os.sysconf("SC_PAGE_SIZE")
        for piece in x.store.pieces:
            start, end = np.lib.array_utils.byte_bounds(piece)
            first_page = -(-start // page) * page
            if end > first_page:
                size = ctypes.c_size_t(end - first_page)
                ctypes.CDLL(None).madvise(ctypes.c_void_p(first_page), size, _GIVE_BACK)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def compared(setup: Setup, path: Path, turns: int, cold: bool) -> dict[str, list[float]]:
    """Returns seconds of rounds in each way, in turn; with uncached files if `cold`."""
    taken: dict[str, list[float]] = {name: [] for name in WAYS}
    with Running(setup) as run:
        run.go()
        for _ in range(turns):
            for name, way in WAYS.items():
                if cold:
                    give_back(setup, path)
                with patch.multiple(executor, read_ahead=way, FEWEST_EPOCHS=1):
                    began = time.perf_counter()
                    run.go()
                    taken[name].append(time.perf_counter() - began)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=200_000)
    parser.add_argument("--turns", type=int, default=9)
    arguments = parser.parse_args()
    console, spread, cohort = Console(width=110), [steadiness.reference()], arguments.clients // 10
    table = Table(title=f"s per round, medians of {arguments.turns} (quartiles)")
    for name in ("run", "file", *WAYS):
        table.add_column(name)
    for features, fewer in WIDTHS.items():
        with TemporaryDirectory() as folder:
            path, public = Path(folder) / "clients", Path(folder) / "public"
            write(path, arguments.clients // fewer, 0, features)
            write(public, 50, 1, features)
            for epochs in (1, 3):
                counts, chunks = (arguments.clients // fewer, cohort // fewer), "run.chunk=32"
                settings = (chunks, "run.trainer=stacked", f"client.epochs={epochs}")
                work = workload(path, public, *counts, *settings, features=features)
                setup = work.setup()
                for cold in (False, True):
                    taken = compared(setup, next(path.glob("*.arrow")), arguments.turns, cold)
                    table.add_row(
                        f"{counts[1]:,} drawn, {features:,} bytes, {epochs} epochs",
                        "given back" if cold else "in memory",
                        *(shown(times) for times in taken.values()),
                    )
                    spread.append(steadiness.reference())
    console.print(table)
    console.print(f"{steadiness.machine()}; {steadiness.spread(spread)}")


def shown(times: list[float]) -> str:
    low, middle, high = statistics.quantiles(times, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
