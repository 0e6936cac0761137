"""The cost of distributed noise: samplers, rotations, and a round next to a masked one.

    python -m experiments.benchmarks.distributed_noise

Skellam and discrete Gaussian samples are compared with differences of NumPy's Poisson samples, and
a Gaussian on a grid with PyTorch's normal samples; neither reference satisfies the proof (its
generator is not cryptographic, its arithmetic floating point). The rotation is compared with a
plain butterfly in NumPy, and rounds of masked sums of encoded rows with the same round with central
noise. One thread, in turn, medians of several.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from privfed.client.objective import Sgd
from privfed.core.streams import Keys
from privfed.privacy.mechanism import Encoding
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.privacy.mechanisms.distributed import (
    DiscreteGaussianNoise,
    InLayers,
    SkellamNoise,
)
from privfed.privacy.noise.gaussian_on_grid import gaussian_on_grid
from privfed.privacy.noise.shares import DiscreteGaussianShare, SkellamShare
from privfed.privacy.rotation import hadamard, padded
from privfed.privacy.setting import ClientShares, CohortSize, Setting
from privfed.secure.limits import Limits
from privfed.secure.masked.protocol import MaskedSums
from privfed.secure.summation import Session

REPEATS = 5


def median(work: Callable[[], object]) -> float:
    work()  # tables are built only once
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def butterfly(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the Walsh-Hadamard transform of each row, two numbers at a time."""
    transformed, half = rows.copy(), 1
    while half < rows.shape[1]:
        pairs = transformed.reshape(len(rows), -1, 2, half)
        first, second = pairs[:, :, 0].copy(), pairs[:, :, 1].copy()
        pairs[:, :, 0], pairs[:, :, 1] = first + second, first - second
        half *= 2
    return transformed


def samplers(table: Table, count: int) -> None:
    generator = np.random.default_rng(0)

    def poissons() -> NDArray[np.int64]:
        return generator.poisson(5000.0, count) - generator.poisson(5000.0, count)

    ours: dict[str, tuple[Callable[[], object], int]] = {
        "Skellam, deviation 100": (lambda: SkellamShare(1e4).draw(Keys(None), count), count),
        "discrete Gaussian, table": (
            lambda: DiscreteGaussianShare(100.0).draw(Keys(None), count),
            count,
        ),
        "discrete Gaussian, exact": (
            lambda: DiscreteGaussianShare(100.0, True).draw(Keys(None), count // 10),
            count // 10,
        ),
    }
    reference = count / median(poissons) / 1e6
    for name, (draw, drawn) in ours.items():
        speed = drawn / median(draw) / 1e6
        shown = f"{speed:.1f} M/s", f"NumPy's Poissons {reference:.1f} M/s", speed / reference
        table.add_row(name, *shown[:2], f"{shown[2]:.2f} x")
    exact = median(lambda: gaussian_on_grid(Keys(None), 1.0, count))
    normal = median(lambda: torch.randn(count, dtype=torch.float64))
    fast = f"{count / exact / 1e6:.1f} M/s", f"PyTorch's normal {count / normal / 1e6:.1f} M/s"
    table.add_row("Gaussian on a grid", *fast, f"{normal / exact:.2f} x")


def rotation(table: Table, length: int) -> None:
    rows = torch.randn(1, length, dtype=torch.float64)
    ours, plain = median(lambda: hadamard(rows)), median(lambda: butterfly(rows.numpy()))
    shown = f"{1e3 * ours:.0f} ms", f"a butterfly {1e3 * plain:.0f} ms", f"{plain / ours:.2f} x"
    table.add_row(f"rotation of {length:,}", *shown)


def one_round(clients: int, length: int, noise: type[InLayers] | None) -> float:
    """Returns seconds of a round over masks from clipped rows to the released average.

    The clients' `noise` is distributed, or central if it is None.
    """
    limits = Limits(clients, size=clients)
    summation = MaskedSums(bits=20).over(limits)
    setting = Setting(
        cohort=CohortSize(clients, clients),
        noise=ClientShares(int(0.8 * clients)),
        bits=20,
        length=length,
    )
    mechanism = (
        noise(noise_multiplier=1.0).resolved(setting)
        if noise
        else CentralGaussian(noise_multiplier=1.0)
    )
    state = mechanism.init()
    encoding: Encoding = mechanism.encoding(state)
    rows, layout = torch.randn(1, length), Sgd().layout(length)
    session = Session(1, 0, bytes(32), np.arange(clients))

    def play() -> None:
        width = padded(length) if noise else length
        accumulator = summation.open(session, width, encoding)
        for client in range(clients):
            bounded = mechanism.bound(rows, layout, Keys(None), state)
            accumulator.add(np.array([client]), bounded)
        mechanism.release(accumulator.close(), float(clients), Keys(None), state)

    return median(play)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2_000_000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--length", type=int, default=100_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(title="distributed noise, one thread")
    for name in ("what", "privfed", "reference", "ratio"):
        table.add_column(name)
    samplers(table, arguments.count)
    rotation(table, 1 << 20)
    plain = one_round(arguments.clients, arguments.length, None)
    reference = f"masks, central noise {plain:.2f} s"
    for noise in (SkellamNoise, DiscreteGaussianNoise):
        seconds = one_round(arguments.clients, arguments.length, noise)
        what = f"{noise.kind}: {arguments.clients} clients, d = {arguments.length:,}"
        table.add_row(what, f"{seconds:.2f} s", reference, f"{seconds / plain:.2f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
