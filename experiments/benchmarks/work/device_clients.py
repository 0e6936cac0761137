"""Training of many clients at once on a device: stacked against one by one, for networks.

Part of `device`. One-by-one training is timed on a few clients and extrapolated to all.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from experiments.benchmarks.work.workloads import CNN, TRANSFORMER, Workload
from privfed.client.device_memory import memory_of
from privfed.client.trainer import Way
from privfed.run.setup import Setup

NETWORKS = (CNN, TRANSFORMER)
CLIENTS = {"cpu": (4, 16), "cuda": (64, 256, 1024)}
"""Numbers of clients that are stacked on a device of that kind."""
SINGLE_PROCESS = 8
"""Number of clients that are timed one by one."""


@dataclass(frozen=True)
class ManyClients:
    """Seconds of stacked `clients`, and of one of them alone.

    `operations` are those of a client's matrix products and convolutions. `held` is the peak memory
    per stacked client in bytes, if the device reports it (else 0).
    """

    work: str
    clients: int
    stacked: float
    alone: float
    operations: int
    held: int

    @property
    def ratio(self) -> float:
        """The speed-up of stacked training."""
        return self.alone * self.clients / self.stacked


def train(setup: Setup, way: Way, clients: int, number: int) -> Tensor:
    """Returns rows `[clients, d]` of the first clients, all in one call."""
    ids, local = np.arange(clients), replace(setup.executor.trainer, way=way)
    keys = setup.streams.at("shuffle", number, ids)
    return local.train(ids, {"params": setup.network.initial_params}, None, keys)[0]


def many_clients(
    work: Workload, device: str, counts: tuple[int, ...], repeats: int
) -> list[ManyClients]:
    """Measures `work` on `device` with each of these counts of clients."""
    most = max(*counts, SINGLE_PROCESS)
    sizes = (f"data.clients={most}", f"cohort.size={min(counts)}", "run.chunk=1")
    setup = work.with_(*sizes, f"run.device={device}").setup("run.trainer=loop")
    alone = _seconds(setup, "loop", SINGLE_PROCESS, repeats) / SINGLE_PROCESS
    with FlopCounterMode(display=False) as counter:
        train(setup, "loop", 1, 0)
    operations = int(counter.get_total_flops())
    memory = memory_of(setup.network.initial_params.device)
    results = []
    for clients in counts:
        taken = _seconds(setup, "stacked", clients, repeats)
        held = 0
        if memory:
            held = memory.peak(partial(train, setup, "stacked", clients, 0))
        each = held // clients
        results.append(ManyClients(work.name, clients, taken, alone, operations, each))
    return results


def _seconds(setup: Setup, way: Way, clients: int, repeats: int) -> float:
    """Returns the median of `repeats`, after one warm-up."""
    taken = []
    for number in range(repeats + 1):
        _wait(setup)
        began = time.perf_counter()
        train(setup, way, clients, number)
        _wait(setup)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def _wait(setup: Setup) -> None:
    device = setup.network.initial_params.device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
