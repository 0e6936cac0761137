"""What a server does with rows on a device, and how much of the device it uses.

Part of `device`. Each piece of work has to read its rows once: the share of memory printed is of
that, so that what is read or written again counts against it. Noise is drawn on the CPU, and masked
sums are added up there: what these take is a round's with them less one's without.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from defenses.by_sums.geometric_median import GeometricMedian
from defenses.on_rows.trimmed_mean import TrimmedMean
from experiments.benchmarks.work.running import Running
from experiments.benchmarks.work.workloads import LOGISTIC
from privfed.core.streams import Streams
from privfed.privacy.clipping import clip_rows
from privfed.privacy.mechanism import BoundedSum
from privfed.privacy.noise.gaussian_on_grid import gaussian_on_grid, grid_of
from privfed.secure.plain_sum import PlainAccumulator

ROWS = {"cpu": (20, 100_000), "cuda": (100, 1_000_000)}
"""How many rows of how many numbers a device of that kind aggregates."""
AIM = 0.020
"""Seconds that the geometric median and the trimmed mean may take on a GPU."""
CLIP, DEVIATION = 0.4, 0.4
ROUNDS = {
    "a round, plain sums": (),
    "a round, masked sums": ("secure.protocol=masks",),
    "a round, geometric median": ("aggregation.rule=geometric_median",),
    "a round, trimmed mean": (
        *("privacy.mechanism=none", "aggregation.weights=uniform"),
        *("aggregation.rule=trimmed_mean", "aggregation.byzantine=10"),
    ),
}


@dataclass(frozen=True)
class Work:
    """What was done, the seconds it took, and the bytes that it has to read at least (or 0)."""

    name: str
    seconds: float
    least: int = 0
    aim: float = 0.0


def server_work(
    device: torch.device, timed: Callable[[Callable[[], object]], float], shape: tuple[int, int]
) -> list[Work]:
    """Rules on rows of that `shape`, clips and sums of them, and noise; each is `timed`."""
    n, d = shape
    rows = torch.randn(n, d, generator=torch.Generator().manual_seed(0)).to(device)
    size, hostile, keys = 4 * n * d, n // 5, Streams(0, simulated=False).at("noise/central", 1)

    def clipped_sum() -> BoundedSum:
        accumulator = PlainAccumulator(d, CLIP)
        accumulator.add(torch.arange(n).numpy(), clip_rows(rows, CLIP, grid_of(DEVIATION)))
        return accumulator.close()

    def noise() -> Tensor:
        return torch.from_numpy(gaussian_on_grid(keys, DEVIATION, d)).to(device)

    return [
        Work("geometric median", timed(lambda: GeometricMedian()(rows, hostile)), size, AIM),
        Work("trimmed mean", timed(lambda: TrimmedMean()(rows, hostile)), size, AIM),
        Work("clip, grid and sum", timed(clipped_sum), size),
        Work("noise, drawn on the CPU", timed(noise)),
    ]


def rounds(device: str, count: int, *settings: str) -> list[Work]:
    """Rounds of 100 clients as a run plays them, on `device`: by sums and by rules."""
    model = ("model.name=mlp", "model.hidden=[512]", *settings)
    work = LOGISTIC.with_(*model, f"run.device={device}")
    played = []
    for name, overrides in ROUNDS.items():
        with Running(work.setup(*overrides)) as run:
            run.go(1)
            played.append(Work(name, statistics.median(run.go(count))))
    return played


def timer(wait: Callable[[], None], repeats: int) -> Callable[[Callable[[], object]], float]:
    """What takes the median of `repeats` after one that warms up; `wait` waits for the device."""

    def timed(act: Callable[[], object]) -> float:
        taken = []
        for _ in range(repeats + 1):
            wait()
            began = time.perf_counter()
            act()
            wait()
            taken.append(time.perf_counter() - began)
        return statistics.median(taken[1:])

    return timed
