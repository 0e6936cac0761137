"""Chooses the fastest training mode at start-up.

Models of a chunk of clients are either stacked (trained together, as one batched model) or looped
(trained one by one).

Speeds are measured on synthetic clients, never on the population: the choice is recorded in the
run's configuration and must not depend on private data. For small models of linear layers the
fastest mode is known, and only its speed is measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from privfed.client.device_memory import MARGIN, CudaMemory, memory_need
from privfed.client.exchange import Broadcast
from privfed.client.race import race, remembered
from privfed.client.trainer import LocalTrainer, Way
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.federation import Examples, Federation
from privfed.models.calling import failed_layer

_CHUNKS = {"cpu": (8, 32, 128), "cuda": (32, 128, 512, 1024)}
"""Chunk sizes tried on a device of each type."""
_CACHED = 1 << 20
"""Number of values that fit in a processor's cache: looped rows stay there until summed."""
_MOST = 1 << 25
"""Upper bound on chunk size times model length if a CPU's chunk size is chosen automatically.

Training needs memory for several times as many numbers.
"""
_LOOPED = 4
"""Number of clients timed in a loop, over which the fixed cost of a call is averaged."""
_MOST_EXAMPLES = 32
_SMALL = 10_000
"""Largest number of parameters for which linear layers use the largest chunks without a comparison.

Time per local step, one thread, batches of 1 to 32, relative to chunks of 128:

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
_UNBATCHED = "Batching rule not implemented"
"""PyTorch's error for a layer that `torch.func.vmap` cannot batch over models."""
_BRANCHES = "data-dependent control flow"
"""PyTorch's error for a module that branches on values of its input."""
_LARGE_BATCH = 1024
"""A larger batch size is taken to mean all examples of a client."""


@dataclass(frozen=True)
class Speed:
    """The chosen training mode and chunk size, and the seconds per local step of one client.

    `unstacked` is the reason why models are not stacked, if the configuration left the mode open
    and stacking is impossible. `precision` is a plan's text on the training precision, such as "in
    mixed precision"; empty if a plan should not report it.
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
    memory: CudaMemory | None = None,
    held: int = 0,
) -> Speed:
    """Returns the fastest training mode and chunk size that the configuration permits.

    Clients are looped if the network draws random numbers (dropout), or if PyTorch cannot batch it
    over models (a plain RNN). If `way` is "auto" and `memory` is None, they are also looped if two
    models together have more than 2^25 parameters. If `memory` is given, a chunk size, also a
    requested one, is reduced to what fits in it. A chunk size that is left open is at most
    max(2 `cohort`, 2); without `memory`, chunks of several clients also have at most 2^25
    parameters in total.

    Args:
      trainer: the local trainer of the run.
      cohort: expected number of clients in a cohort.
      way: training mode; "auto" leaves it open.
      chunk: clients per chunk; 0 leaves it open.
      memory: device memory; None on a CPU.
      held: bytes of device memory in use by other objects.

    Returns:
      The fastest mode, its chunk size and its speed.

    Raises:
      Refused: if "stacked" was requested but is impossible, or if not even one client fits in
        memory.
    """
    most = max(2 * cohort, 2)
    if way != "loop" and not chunk and not memory and _is_known(trainer):
        return _speed(trainer, "stacked", min(most, _CHUNKS["cpu"][-1]), repeats=2, most=most)
    ways, reason = _ways(trainer, way, memory)
    if memory:
        fitting = _fitting(trainer, ways, memory, held)
        most, chunk = min(most, fitting), min(chunk, fitting)
    options = _options(trainer, ways, chunk, most, bounded=not memory)
    if not options[1:]:
        return replace(_speed(trainer, *options[0], repeats=1, most=most), unstacked=reason)
    seconds = _raced([(trainer, *option) for option in options], most)
    best = min(range(len(options)), key=seconds.__getitem__)
    return Speed(*options[best], seconds[best], unstacked=reason)


def _ways(
    trainer: LocalTrainer, way: Way | Literal["auto"], memory: CudaMemory | None
) -> tuple[tuple[Way, ...], str | None]:
    """Returns the training modes to try, and the reason why models cannot be stacked, or None.

    Raises `Refused` if "stacked" was requested but is impossible.
    """
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
    """Returns the pairs of training mode and chunk size to compare.

    A `chunk` that is not 0 is the only size. Otherwise chunks have at most `most` clients; if
    `bounded`, chunks of several clients also have at most `_MOST` parameters in total.
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
    """Whether the largest chunks are known to be fastest, without a comparison.

    True on a CPU for plain steps (`LocalTrainer.plain`) of a network with at most `_SMALL`
    parameters that has only linear, flattening and elementwise layers (`Network.linear`).
    """
    network = trainer.network
    start = network.initial_params
    small = len(start) <= _SMALL and start.device.type == "cpu"
    return small and trainer.plain and network.linear


def _fitting(trainer: LocalTrainer, ways: tuple[Way, ...], memory: CudaMemory, held: int) -> int:
    """Returns the number of clients that fit into memory in every one of the modes `ways`.

    Raises `Refused` if not even one client fits in some mode.
    """
    d = trainer.network.shapes.length
    length, free = trainer.objective.layout(d).length, memory.free()
    fitting = []
    for way in ways:
        need = memory_need(partial(_tried, trainer, way), memory, length)
        fitting.append(need.clients(free, held) if need else 0)
    if min(fitting) == 0:
        raise Refused(
            f"run.device is a GPU with {free / 1e9:.1f} GB free, but a single client does not fit "
            f'({100 * MARGIN:.0f} % of the memory is kept as a margin); use run.device = "cpu", a '
            "smaller client.batch_size or cohort, or a smaller model"
        )
    return min(fitting)


def _tried(trainer: LocalTrainer, way: Way, clients: int) -> None:
    """Trains `clients` synthetic clients for one step on the largest batch to be expected.

    The batch has the configured size. A size above 1,024 is taken to mean all of a client's
    examples: the batch then has twice the public estimate of their number, but at least 32 (32
    without an estimate). Its size therefore depends on public values only.
    """
    typical = trainer.federation.typical
    bound = _MOST_EXAMPLES if typical is None else max(_MOST_EXAMPLES, math.ceil(2 * typical))
    size = trainer.batch_size if trainer.batch_size <= _LARGE_BATCH else bound
    training(trainer, way, _synthetic_population(trainer, clients, size))()


def _too_long(trainer: LocalTrainer) -> str | None:
    """Returns the reason if two models together exceed `_MOST` parameters; otherwise None."""
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
        layer = failed_layer(error, trainer.network.module)
        if _UNBATCHED in first:
            part = f"its layer {layer}" if layer else "a function in it"
            first = f"PyTorch's vmap has no batched form of {part}"
        elif _BRANCHES in first:
            first = f"{layer or 'its forward'} branches on values of its input"
        return f"this model cannot be stacked: {first}"
    return None


def speedup(candidate: LocalTrainer, reference: LocalTrainer, speed: Speed, cohort: int) -> float:
    """Returns the speed-up of `candidate` over `reference`.

    Both use the training mode and chunk size of `speed`, on synthetic clients: at most
    max(2 `cohort`, 2) if models are stacked, at most 4 in a loop.
    """
    trainers = (candidate, reference)
    contenders = [(trainer, speed.way, speed.chunk) for trainer in trainers]
    ours, theirs = _raced(contenders, max(2 * cohort, 2))
    return theirs / ours


def _raced(contenders: Sequence[tuple[LocalTrainer, Way, int]], most: int) -> list[float]:
    """Returns one client's seconds per step, for each trainer, mode and chunk size."""
    question = {"contenders": [_described(*contender) for contender in contenders], "most": most}
    return remembered(
        question,
        len(contenders),
        lambda: race([_stopwatch(*contender, most) for contender in contenders]),
    )


def _described(trainer: LocalTrainer, way: Way, chunk: int) -> dict[str, object]:
    """Returns the properties of a contender that determine its speed, apart from the machine."""
    network, objective, examples = trainer.network, trainer.objective, trainer.federation.examples
    inner: list[Any] = [objective]
    while hasattr(inner[-1], "inner"):
        inner.append(inner[-1].inner)
    return {
        "way": [way, chunk, trainer.batch_size, trainer.most_steps, torch.get_num_threads()],
        "model": [repr(network.module), network.shapes, network.mixed, network.channels_last],
        "device": network.initial_params.device,
        "objective": [[repr(type(each)), each.plain, each.anchored] for each in inner],
        "loss": repr(type(network.loss)),
        "examples": [examples.x.shape[1:], examples.x.dtype, examples.y.shape[1:]],
    }


def _speed(trainer: LocalTrainer, way: Way, chunk: int, repeats: int, most: int) -> Speed:
    run = _stopwatch(trainer, way, chunk, most)
    return Speed(way, chunk, min(run() for _ in range(repeats)))


def _stopwatch(trainer: LocalTrainer, way: Way, chunk: int, most: int) -> Callable[[], float]:
    """Returns a function that trains synthetic clients, and returns one client's seconds per step.

    Each call trains min(`chunk`, `most`) stacked clients, or min(`chunk`, 4) in a loop.
    """
    clients = min(chunk, most if way == "stacked" else _LOOPED)
    # The number of examples is limited, since a full batch may be very large.
    population = _synthetic_population(
        trainer, clients, min(2 * trainer.batch_size, _MOST_EXAMPLES)
    )
    train = training(trainer, way, population)
    taken = clients * int(trainer.steps(population.sizes(np.arange(1)), 1)[0])

    def run() -> float:
        began = time.perf_counter()
        train().sum().item()
        return (time.perf_counter() - began) / taken

    return run


def training(
    trainer: LocalTrainer, way: Way, population: Federation, epochs: int = 1
) -> Callable[[], Tensor]:
    """Returns a function that trains all clients of `population` as in round 1, in mode `way`.

    Each client trains `epochs` local epochs. The function returns the clients' messages, one row
    each, `[clients, m]`. The broadcast is that of `first_broadcast`, and no client has a state yet.
    """
    candidate = replace(trainer, federation=population, way=way, epochs=epochs)
    ids = np.arange(population.clients)
    keys = Streams(0, simulated=True).at("measure", 0, ids)
    broadcast = first_broadcast(trainer)
    initial_client_state = trainer.objective.initial_client_state(broadcast).expand(len(ids), -1)
    states = initial_client_state if trainer.objective.keeps else None
    returning = torch.zeros(len(ids), dtype=torch.bool, device=initial_client_state.device)
    return lambda: candidate.train(ids, broadcast, states, keys, returning=returning)[0]


def first_broadcast(trainer: LocalTrainer) -> Broadcast:
    """Returns the broadcast of round 1 if all releases before training (`prelude`) were zero."""
    params, objective = trainer.network.initial_params, trainer.objective
    prelude = objective.prelude(params, objective.init(params))
    answer = None
    while True:  # a prelude's exchanges are answered with zeros
        try:
            exchange = prelude.send(answer) if answer is not None else next(prelude)
        except StopIteration as finished:
            return {"params": params, **finished.value}
        answer = params.new_zeros(exchange.layout.length)


def _synthetic_population(trainer: LocalTrainer, clients: int, size: int) -> Federation:
    """Returns `clients` synthetic clients with `size` examples each, of the real ones' shape.

    Features are random, because pooling layers take only half the time if all numbers are equal.
    All clients have the same examples, because generating many large images takes long.
    """
    real = trainer.federation.examples
    x, y = (part.repeat(clients, *(1 for _ in part.shape[1:])) for part in real.synthetic(size))
    examples = Examples(x, y, real.classes)
    return Federation(examples, np.arange(clients + 1) * size, examples)
