"""How to train here fastest: stacked in chunks of what size, or one client after the other.

Measured at start-up on made-up clients, never on the population: what is recorded in the run's
configuration must not depend on private data. Of small models of linear layers the answer is known,
and only how fast that is remains to be measured.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from privfed.client.batches import steps
from privfed.client.device_memory import MARGIN, DeviceMemory, need_of
from privfed.client.exchange import Broadcast
from privfed.client.trainer import LocalTrainer, Way
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.federation import Examples, Federation

_CHUNKS = {"cpu": (8, 32, 128), "cuda": (32, 128, 512, 1024)}
"""What is tried on a device of that kind."""
_CACHED = 1 << 20
"""Numbers: models one after the other that a cache holds until they are clipped and summed."""
_MOST = 1 << 25
"""Numbers: the rows of a chunk, of which training holds several copies, where it is chosen here."""
_REPEATS = 3
_LOOPED = 4
"""One after the other: enough that what a call costs by itself is shared as in a round."""
_TURNS = 5
"""For each of two that are compared."""
_MOST_EXAMPLES = 32
_SMALL = 10_000
"""Parameters up to which linear layers are trained fastest in the largest chunks, on a processor.

Time per local step, one thread, batches of 1 to 32, over that of chunks of 128:

| parameters | chunks of 32 | of 8 | one by one |
|---|---|---|---|
| 42 | 2.0 to 3.7 | 5 to 14 | 40 to 82 |
| 650 | 2.3 to 3.1 | 7 to 11 | 28 to 50 |
| 2,410 | 1.7 to 2.3 | 5 to 7 | 21 to 34 |
| 4,810 | 1.5 to 1.9 | 4 to 5 | 16 to 30 |
| 10,010 | 1.2 to 1.4 | 2 to 4 | 7 to 13 |
| 19,210 | 1.1 to 1.6 | 2 to 3 | 6 to 11 |
| 76,810 | 0.7 to 0.8 | 0.8 to 1.0 | 1.6 to 1.9 |
"""
_UNBATCHED = re.compile(r"Batching rule not implemented for (aten::)?(?P<layer>\w+)")
"""What PyTorch says of a layer that `torch.func.vmap` cannot compute for several models."""
_LARGE_BATCH = 1024
"""A larger batch is taken to mean all examples of a client."""


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


def fastest(
    trainer: LocalTrainer,
    cohort: int,
    way: Way | Literal["auto"],
    chunk: int,
    memory: DeviceMemory | None = None,
    held: int = 0,
) -> Speed:
    """The best way and chunk size for a `cohort`, of what "auto" and 0 leave open.

    A network that draws (dropout), or that PyTorch cannot batch over models (an LSTM), is trained
    one client after the other, and so is one of which two are too many numbers. A chunk that is
    chosen here has at most `_MOST` of them: memory does not grow with chunk times model.
    Raises `Refused` where "stacked" was asked for nevertheless.

    No chunk is larger than what fits the `memory` of a device, where that is another than the
    processor's, beside `held` bytes: nor one that was asked for. Raises `Refused` where a single
    client does not fit.
    """
    most = max(2 * cohort, 2)
    if way != "loop" and not chunk and not memory and _is_known(trainer):
        return _speed(trainer, "stacked", min(most, _CHUNKS["cpu"][-1]), repeats=2, most=most)
    ways, reason = _ways(trainer, way, memory)
    if memory:
        fitting = _fitting(trainer, ways, memory, held)
        most, chunk = min(most, fitting), min(chunk, fitting)
    options = _options(trainer, ways, chunk, most, bounded=not memory)
    repeats = _REPEATS if options[1:] else 1
    speeds = [_speed(trainer, kind, size, repeats, most) for kind, size in options]
    best = min(speeds, key=lambda speed: speed.seconds)
    return replace(best, unstacked=reason)


def _ways(
    trainer: LocalTrainer, way: Way | Literal["auto"], memory: DeviceMemory | None
) -> tuple[tuple[Way, ...], str | None]:
    """The ways to try, and why models cannot be stacked, where that was open. Raises `Refused`."""
    if way == "loop":
        return ("loop",), None
    too_long = way == "auto" and not memory and _too_long(trainer)
    reason = too_long or _not_stackable(trainer)
    if reason is None:
        return (("stacked", "loop") if way == "auto" else ("stacked",)), None
    if way == "stacked":
        raise Refused(f'run.trainer is "stacked", but {reason}; use "loop" or "auto"')
    return ("loop",), reason


def _options(
    trainer: LocalTrainer, ways: tuple[Way, ...], chunk: int, most: int, bounded: bool
) -> list[tuple[Way, int]]:
    """What is compared: ways, and chunks of at most `most` clients, of numbers that are `bounded`
    where no device's memory bounds them.
    """
    start = trainer.network.initial_params
    length = max(len(start), 1)
    largest = max(1, min(most, _MOST // length)) if bounded else most
    tried = _CHUNKS.get(start.device.type, _CHUNKS["cpu"])
    sizes = (chunk,) if chunk else tuple(sorted({min(size, largest) for size in tried}))
    looped = chunk or min(max(1, _CACHED // length), sizes[0])
    chunks = {"stacked": sizes, "loop": (looped,)}
    return [(way, size) for way in ways for size in chunks[way]]


def _is_known(trainer: LocalTrainer) -> bool:
    """Whether the largest chunks are known to be fastest."""
    network = trainer.network
    start = network.initial_params
    small = len(start) <= _SMALL and start.device.type == "cpu"
    return small and trainer.plain and network.linear


def _fitting(trainer: LocalTrainer, ways: tuple[Way, ...], memory: DeviceMemory, held: int) -> int:
    """How many clients fit in each of these `ways`. Raises `Refused` where none does."""
    d = trainer.network.shapes.length
    length, free = trainer.objective.layout(d).length, memory.free()
    fitting = []
    for way in ways:
        need = need_of(partial(_tried, trainer, way), memory, length)
        fitting.append(need.clients(free, held) if need else 0)
    if min(fitting) == 0:
        raise Refused(
            f"run.device: the GPU has {free / 1e9:.1f} GB free, of which {100 * MARGIN:.0f} % are "
            "kept as a margin, and a single client does not fit the rest; use run.device = "
            '"cpu", a smaller client.batch_size or cohort, or a smaller model'
        )
    return min(fitting)


def _tried(trainer: LocalTrainer, way: Way, clients: int) -> None:
    """Train `clients` made-up clients on a batch of as many examples as it may hold.

    How many that is follows from public facts: the configuration or, where it says "all of them",
    what is known of the population.
    """
    typical = trainer.federation.typical
    bound = _MOST_EXAMPLES if typical is None else max(_MOST_EXAMPLES, math.ceil(2 * typical))
    size = trainer.batch_size if trainer.batch_size <= _LARGE_BATCH else bound
    _training(trainer, way, _made_up(trainer, clients, size))()


def _too_long(trainer: LocalTrainer) -> str | None:
    """Why models of so many numbers are not stacked, where they are not."""
    length = len(trainer.network.initial_params)
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
        if unbatched := _UNBATCHED.match(first):
            first = f"PyTorch's vmap has no batched form of its layer {unbatched['layer']}"
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
    # Not more than a few dozen examples: "one batch of everything" is often a huge size.
    population = _made_up(trainer, clients, min(2 * trainer.batch_size, _MOST_EXAMPLES))
    train = _training(trainer, way, population)
    taken = clients * int(steps(population.sizes(np.arange(1)), 1, trainer.batch_size)[0])

    def run() -> float:
        began = time.perf_counter()
        train().sum().item()
        return (time.perf_counter() - began) / taken

    return run


def _training(trainer: LocalTrainer, way: Way, population: Federation) -> Callable[[], Tensor]:
    """One epoch of all clients of a made-up `population`, which gives their rows `[c, m]`."""
    candidate = replace(trainer, federation=population, way=way, epochs=1)
    ids = np.arange(population.clients)
    keys = Streams(0, simulated=True).at("measure", 0, ids)
    broadcast = first_broadcast(trainer)
    unseen = trainer.objective.unseen(broadcast).expand(len(ids), -1)
    states = unseen if trainer.objective.keeps else None
    returning = torch.zeros(len(ids), dtype=torch.bool, device=unseen.device)
    return lambda: candidate.train(ids, broadcast, states, keys, returning=returning)[0]


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


def _made_up(trainer: LocalTrainer, clients: int, size: int) -> Federation:
    """`clients` clients of `size` examples each, random numbers in the shape of the real ones.

    Random, since the largest of equal numbers (pooling) is found in half the time; the same for
    all, as many large images take long to draw.
    """
    real = trainer.federation.examples
    x, y = (part.repeat(clients, *(1 for _ in part.shape[1:])) for part in real.made_up(size))
    examples = Examples(x, y, real.classes)
    return Federation(examples, np.arange(clients + 1) * size, examples)
