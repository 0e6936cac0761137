"""How to train here fastest: stacked in chunks of what size, or one client after the other.

Measured at start-up on made-up clients, never on the population: what is recorded in the run's
configuration must not depend on private data.
"""

from __future__ import annotations

import time
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
_MOST = 1 << 25
"""Numbers: the rows of a chunk, of which training holds several copies, where it is chosen here."""
_REPEATS = 3
_LOOPED = 4
"""One after the other: enough that what a call costs by itself is shared as in a round."""
_MOST_EXAMPLES = 32


@dataclass(frozen=True)
class Speed:
    """How clients are trained here, and the seconds that one local step of one of them takes.

    `unstacked` says why models could not be stacked, where that was left open.
    """

    way: Way
    chunk: int
    seconds: float
    unstacked: str | None = None


def fastest(trainer: LocalTrainer, cohort: int, way: Way | Literal["auto"], chunk: int) -> Speed:
    """The best way and chunk size for a `cohort`, of what "auto" and 0 leave open.

    A network that draws (dropout), or that PyTorch cannot batch over models (an LSTM), is trained
    one client after the other, and so is one of which two are too many numbers. A chunk that is
    chosen here has at most `_MOST` of them: memory does not grow with chunk times model.
    Raises `Refused` where "stacked" was asked for nevertheless.
    """
    ways: tuple[Way, ...] = ("stacked", "loop") if way == "auto" else (way,)
    length = max(len(trainer.network.initial_params), 1)
    reason = _too_long(length) if way == "auto" else None
    if reason is None and "stacked" in ways:
        reason = _not_stackable(trainer)
    if reason:
        if way == "stacked":
            raise Refused(f'run.trainer is "stacked", but {reason}; use "loop" or "auto"')
        ways = ("loop",)
    most = max(2 * cohort, 2)
    largest = max(1, min(most, _CHUNKS[-1], _MOST // length))
    sizes = (chunk,) if chunk else tuple(sorted({min(size, largest) for size in _CHUNKS}))
    cached = max(1, _CACHED // length)
    options = [
        (kind, size)
        for kind in ways
        for size in (sizes if kind == "stacked" else (chunk or min(cached, sizes[0]),))
    ]
    repeats = _REPEATS if options[1:] else 1
    speeds = [_speed(trainer, kind, size, repeats, most) for kind, size in options]
    best = min(speeds, key=lambda speed: speed.seconds)
    return replace(best, unstacked=reason)


def _too_long(length: int) -> str | None:
    """Why models of so many numbers are not stacked, where they are not."""
    if 2 * length <= _MOST:
        return None
    return f"two models of {length:,} parameters are more than {_MOST:,} numbers"


def _not_stackable(trainer: LocalTrainer) -> str | None:
    if trainer.network.unstackable:
        return trainer.network.unstackable
    try:
        _speed(trainer, "stacked", chunk=2, repeats=1, most=2)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        first = (str(error).splitlines() or [""])[0]
        return f"this model cannot be stacked: {first}"
    return None


def _speed(trainer: LocalTrainer, way: Way, chunk: int, repeats: int, most: int) -> Speed:
    """The speed measured on `most` clients at most, however many a chunk may hold."""
    clients = min(chunk, most if way == "stacked" else _LOOPED)
    population = _made_up(trainer, clients)
    candidate = replace(trainer, federation=population, way=way, epochs=1)
    ids = np.arange(clients)
    keys = Streams(0, simulated=True).at("measure", 0, ids)
    broadcast = first_broadcast(trainer)
    unseen = trainer.objective.unseen(broadcast).expand(clients, -1)
    states = unseen if trainer.objective.keeps else None
    returning = torch.zeros(clients, dtype=torch.bool, device=unseen.device)
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        rows, _ = candidate.train(ids, broadcast, states, keys, returning=returning)
        rows.sum().item()
        times.append(time.perf_counter() - began)
    taken = clients * int(steps(population.sizes(ids[:1]), 1, trainer.batch_size)[0])
    return Speed(way, chunk, min(times) / taken)


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
