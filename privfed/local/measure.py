"""How to train here fastest: stacked in chunks of what size, or one client after the other.

Measured at start-up on made-up clients, never on the population: what is recorded in the run's
configuration must not depend on private data.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from privfed.federation import Examples, Federation
from privfed.local.trainer import LocalTrainer, Way
from privfed.streams import Streams

_CHUNKS = (8, 32, 128)
_REPEATS = 3
_MOST_EXAMPLES = 32


def fastest(
    trainer: LocalTrainer, cohort: int, way: Way | Literal["auto"], chunk: int
) -> tuple[Way, int]:
    """The way and chunk size to train a `cohort`, measuring what "auto" and 0 leave open."""
    ways: tuple[Way, ...] = ("stacked", "loop") if way == "auto" else (way,)
    largest = max(min(2 * cohort, _CHUNKS[-1]), 1)
    sizes = (chunk,) if chunk else tuple(sorted({min(size, largest) for size in _CHUNKS}))
    options = [
        (kind, size) for kind in ways for size in (sizes if kind == "stacked" else sizes[:1])
    ]
    if len(options) == 1:
        return options[0]
    return min(options, key=lambda option: _seconds_per_client(trainer, *option))


def _seconds_per_client(trainer: LocalTrainer, way: Way, chunk: int) -> float:
    population = _made_up(trainer, chunk)
    candidate = replace(trainer, federation=population, way=way)
    ids = np.arange(chunk)
    keys = Streams(0, simulated=True).at("measure", 0, ids)
    params = trainer.network.start
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        rows, _ = candidate.train(ids, {"params": params}, None, keys)
        rows.sum().item()
        times.append(time.perf_counter() - began)
    return min(times) / chunk


def _made_up(trainer: LocalTrainer, clients: int) -> Federation:
    """`clients` clients of up to two batches each, all zeros, in the shape of the real examples.

    Not more than a few dozen examples: "one batch of everything" is often written as a huge size.
    """
    real = trainer.federation.examples
    size = min(2 * trainer.batch_size, _MOST_EXAMPLES)
    x = torch.zeros(clients * size, *real.x.shape[1:], device=real.x.device)
    y = torch.zeros(clients * size, dtype=torch.int64, device=real.y.device)
    examples = Examples(x, y, real.classes)
    return Federation(examples, np.arange(clients + 1) * size, examples)
