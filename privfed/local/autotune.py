"""How to train here fastest: stacked in chunks of what size, or one client after the other.

Measured at start-up on made-up clients, never on the population: what is recorded in the run's
configuration must not depend on private data.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from privfed.data.federation import Examples, Federation
from privfed.errors import Refused
from privfed.local.batches import steps
from privfed.local.exchange import Broadcast
from privfed.local.trainer import LocalTrainer, Way
from privfed.streams import Streams

_CHUNKS = (8, 32, 128)
_CACHED = 1 << 20
"""Numbers: models one after the other that a cache holds until they are clipped and summed."""
_REPEATS = 3
_LOOPED = 4
"""One after the other: enough that what a call costs by itself is shared as in a round."""
_TURNS = 5
"""For each of two that are compared."""
_MOST_EXAMPLES = 32


@dataclass(frozen=True)
class Speed:
    """How clients are trained here, and the seconds that one local step of one of them takes.

    `unstacked` says why models could not be stacked, where that was left open, and `precision` in
    which precision they train, and why, where that is to be said.
    """

    way: Way
    chunk: int
    seconds: float
    unstacked: str | None = None
    precision: str = ""


def fastest(trainer: LocalTrainer, cohort: int, way: Way | Literal["auto"], chunk: int) -> Speed:
    """The best way and chunk size for a `cohort`, of what "auto" and 0 leave open.

    A network that draws (dropout), or that PyTorch cannot batch over models (an LSTM), is trained
    one client after the other. Raises `Refused` where "stacked" was asked for nevertheless.
    """
    ways: tuple[Way, ...] = ("stacked", "loop") if way == "auto" else (way,)
    reason = _not_stackable(trainer) if "stacked" in ways else None
    if reason:
        if way == "stacked":
            raise Refused(f'run.trainer is "stacked", but {reason}; use "loop" or "auto"')
        ways = ("loop",)
    most = max(2 * cohort, 2)
    largest = min(most, _CHUNKS[-1])
    sizes = (chunk,) if chunk else tuple(sorted({min(size, largest) for size in _CHUNKS}))
    cached = max(1, _CACHED // max(len(trainer.network.initial_params), 1))
    options = [
        (kind, size)
        for kind in ways
        for size in (sizes if kind == "stacked" else (chunk or min(cached, sizes[0]),))
    ]
    repeats = _REPEATS if options[1:] else 1
    speeds = [_speed(trainer, kind, size, repeats, most) for kind, size in options]
    best = min(speeds, key=lambda speed: speed.seconds)
    return replace(best, unstacked=reason)


def _not_stackable(trainer: LocalTrainer) -> str | None:
    if trainer.network.unstackable:
        return trainer.network.unstackable
    try:
        _speed(trainer, "stacked", chunk=2, repeats=1, most=2)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        first = (str(error).splitlines() or [""])[0]
        return f"this model cannot be stacked: {first}"
    return None


def times_as_fast(
    candidate: LocalTrainer, reference: LocalTrainer, speed: Speed, cohort: int
) -> float:
    """How many times as fast as the `reference` the `candidate` trains, both in the way of `speed`.

    They take turns, so that noise of the machine meets both, and the best of each count: what else
    a machine does only ever takes time.
    """
    most = max(2 * cohort, 2)
    run, reference_run = (
        _stopwatch(trainer, speed.way, speed.chunk, most) for trainer in (candidate, reference)
    )
    times = [(run(), reference_run()) for _ in range(_TURNS)]
    return min(theirs for _, theirs in times) / min(ours for ours, _ in times)


def _speed(trainer: LocalTrainer, way: Way, chunk: int, repeats: int, most: int) -> Speed:
    run = _stopwatch(trainer, way, chunk, most)
    return Speed(way, chunk, min(run() for _ in range(repeats)))


def _stopwatch(trainer: LocalTrainer, way: Way, chunk: int, most: int) -> Callable[[], float]:
    """What trains made-up clients and gives the seconds that a local step of one of them took.

    They are `most` at most, however many a chunk may hold.
    """
    clients = min(chunk, most if way == "stacked" else _LOOPED)
    population = _made_up(trainer, clients)
    candidate = replace(trainer, federation=population, way=way, epochs=1)
    ids = np.arange(clients)
    keys = Streams(0, simulated=True).at("measure", 0, ids)
    broadcast = first_broadcast(trainer)
    unseen = trainer.objective.unseen(broadcast).expand(clients, -1)
    states = unseen if trainer.objective.keeps else None
    returning = torch.zeros(clients, dtype=torch.bool, device=unseen.device)
    taken = clients * int(steps(population.sizes(ids[:1]), 1, trainer.batch_size)[0])

    def run() -> float:
        began = time.perf_counter()
        rows, _ = candidate.train(ids, broadcast, states, keys, returning=returning)
        rows.sum().item()
        return (time.perf_counter() - began) / taken

    return run


def first_broadcast(trainer: LocalTrainer) -> Broadcast:
    """What round 1 broadcasts, where every exchange before training released zeros."""
    params, objective = trainer.network.initial_params, trainer.objective
    prelude = objective.prelude(params, objective.init(params))
    answer = None
    while True:  # a prelude's exchanges are answered as if nobody had anything to say
        try:
            exchange = prelude.send(answer) if answer is not None else next(prelude)
        except StopIteration as finished:
            return {"params": params, **finished.value}
        answer = params.new_zeros(exchange.layout.length)


def _made_up(trainer: LocalTrainer, clients: int) -> Federation:
    """`clients` clients of up to two batches each, of random numbers in the shape of the real ones.

    Not more than a few dozen examples: "one batch of everything" is often written as a huge size.
    Random, since the largest of equal numbers (pooling) is found in half the time; the same for
    all, as many large images take long to draw.
    """
    real = trainer.federation.examples
    size = min(2 * trainer.batch_size, _MOST_EXAMPLES)
    x, y = (part.repeat(clients, *(1 for _ in part.shape[1:])) for part in real.made_up(size))
    examples = Examples(x, y, real.classes)
    return Federation(examples, np.arange(clients + 1) * size, examples)
