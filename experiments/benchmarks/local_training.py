"""One round of local training: privfed's methods against a bare PyTorch loop, on the same work.

Synthetic(1, 1) logistic regression, 60 features and 10 classes, 1,000 clients, a cohort of 100, one
epoch of batches of 10, under central noise. The reference is a plain loop over clients with
`torch.optim.SGD`, which shares only the data and the batches with privfed. Methods are timed in
turn, round after round, so that noise of the machine affects all alike; medians are compared.

    python -m experiments.benchmarks.local_training
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from experiments.benchmarks.work.workloads import LOGISTIC, SAME_FOR_ALL
from privfed.client.batches import plan_batches
from privfed.client.trainer import Way
from privfed.config.reading import load
from privfed.core.vector import Indices
from privfed.privacy.clipping import clip_rows
from privfed.run.prepare import prepare
from privfed.run.setup import Setup

SETTINGS = (*SAME_FOR_ALL, *LOGISTIC.settings, "run.randomness=seeded", "run.trainer=stacked")
REFERENCE = "bare PyTorch loop"


def bare_loop(setup: Setup, ids: Indices, round: int) -> Tensor:
    """Returns each client's update by an nn.Module and torch.optim.SGD; rows `[n, d]`."""
    local = setup.executor.trainer
    params = setup.network.initial_params
    rows = []
    module = copy.deepcopy(setup.network.module).requires_grad_(True)
    keys = setup.streams.at("shuffle", round, ids)
    batches = plan_batches(local.federation, ids, keys, local.epochs, local.batch_size)
    for client in range(len(ids)):
        nn.utils.vector_to_parameters(params.clone(), module.parameters())
        optimizer = torch.optim.SGD(module.parameters(), lr=local.lr)
        for step in range(batches.steps[client]):
            index = torch.from_numpy(batches.rows[client, step][batches.mask[client, step]])
            x, y = local.federation.gather(index)
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        rows.append(nn.utils.parameters_to_vector(module.parameters()).detach() - params)
    return torch.stack(rows)


def trained(setup: Setup, way: Way, chunk: int, ids: Indices, round: int) -> Tensor:
    """Returns privfed's own updates of the same clients."""
    local = replace(setup.executor.trainer, way=way)
    broadcast = {"params": setup.network.initial_params}
    parts = []
    for start in range(0, len(ids), chunk):
        some = ids[start : start + chunk]
        keys = setup.streams.at("shuffle", round, some)
        parts.append(local.train(some, broadcast, None, keys)[0])
    return torch.cat(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    setup = prepare(load(None, SETTINGS))
    torch.set_num_threads(1)
    ways: dict[str, Callable[[Indices, int], Tensor]] = {
        REFERENCE: lambda ids, t: bare_loop(setup, ids, t),
        "privfed loop": lambda ids, t: trained(setup, "loop", 100, ids, t),
        "privfed stacked, chunk 32": lambda ids, t: trained(setup, "stacked", 32, ids, t),
        "privfed stacked, chunk 100": lambda ids, t: trained(setup, "stacked", 100, ids, t),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    clipping: list[float] = []
    worst, population = 0.0, setup.federation.population()
    for t in range(1, rounds + 1):
        cohort = setup.algorithm.sampler.sample(t, 1000, population, setup.streams)
        rows: dict[str, Tensor] = {}
        for name, way in ways.items():
            began = time.perf_counter()
            rows[name] = way(cohort.clients, t)
            seconds[name].append(time.perf_counter() - began)
        worst = max(worst, *(float((rows[REFERENCE] - r).abs().max()) for r in rows.values()))
        began = time.perf_counter()
        clip_rows(rows[REFERENCE], 0.4).rows.sum(0, dtype=torch.float64)
        clipping.append(time.perf_counter() - began)

    table = Table(title=f"{rounds} rounds, cohort about 100, 1 thread; median and quartiles, ms")
    for column in ("way", "median", "25 %", "75 %", f"x {REFERENCE}"):
        table.add_column(column, justify="left" if column == "way" else "right")
    base = statistics.median(seconds[REFERENCE])
    for name, times in [*seconds.items(), ("clip and sum alone", clipping)]:
        low, middle, high = statistics.quantiles(times, n=4)
        cells = [f"{1e3 * value:.2f}" for value in (middle, low, high)]
        table.add_row(name, *cells, f"{base / middle:.1f}" if name in ways else "—")
    Console().print(table)
    Console().print(f"largest difference of any update to the reference: {worst:.1e}")


if __name__ == "__main__":
    main()
