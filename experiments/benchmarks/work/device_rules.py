"""A server's work with rows on a device, and the utilisation of the device.

Part of `device`. Each piece of work has to read its rows once. The printed fraction of memory
bandwidth refers to that minimum, so repeated reads or writes reduce it. Noise is sampled on the
CPU, and masked sums are added there; their cost is the difference between rounds with and without
them.
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
"""Number of rows, and of entries per row, that a device of that kind aggregates."""
AIM = 0.020
"""Target seconds of the geometric median and the trimmed mean on a GPU."""
CLIP, STD = 0.4, 0.4
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
    """A piece of work, its seconds, and the minimum of bytes that it has to read (or 0)."""

    name: str
    seconds: float
    least: int = 0
    aim: float = 0.0


def server_work(
    device: torch.device, timed: Callable[[Callable[[], object]], float], shape: tuple[int, int]
) -> list[Work]:
    """Times rules on rows of that `shape`, clipping and summing them, and noise."""
    n, d = shape
    rows = torch.randn(n, d, generator=torch.Generator().manual_seed(0)).to(device)
    size, byzantine, keys = 4 * n * d, n // 5, Streams(0, simulated=False).at("noise/central", 1)

    def clipped_sum() -> BoundedSum:
        accumulator = PlainAccumulator(d, CLIP)
        accumulator.add(torch.arange(n).numpy(), clip_rows(rows, CLIP, grid_of(STD)))
        return accumulator.close()

    def noise() -> Tensor:
        return torch.from_numpy(gaussian_on_grid(keys, STD, d)).to(device)

    return [
        Work("geometric median", timed(lambda: GeometricMedian()(rows, byzantine)), size, AIM),
        Work("trimmed mean", timed(lambda: TrimmedMean()(rows, byzantine)), size, AIM),
        Work("clip, grid and sum", timed(clipped_sum), size),
        Work("noise, drawn on the CPU", timed(noise)),
    ]


def rounds(device: str, count: int, *settings: str) -> list[Work]:
    """Times rounds of 100 clients as in a run, on `device`: by sums and by rules."""
    model = ("model.name=mlp", "model.hidden=[512]", *settings)
    work = LOGISTIC.with_(*model, f"run.device={device}")
    played = []
    for name, overrides in ROUNDS.items():
        with Running(work.setup(*overrides)) as run:
            run.go(1)
            played.append(Work(name, statistics.median(run.go(count))))
    return played


def timer(wait: Callable[[], None], repeats: int) -> Callable[[Callable[[], object]], float]:
    """Returns a function that gives the median of `repeats` calls after a warm-up; `wait`
    synchronises.
    """

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
