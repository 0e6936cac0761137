"""Several processes that play one run: every rank trains its share, and rank 0 decides.

All ranks go through the same rounds. Rank 0 alone has the ledger and the run directory, draws
cohorts, and tells the others; each trains some of the cohort, adds the noise of some of the numbers
to its sum, and sums are all-reduced.
What ranks say to each other is not encrypted: they are one party, on one trusted network.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from privfed.core.errors import RankLost

T = TypeVar("T")
PATIENCE = timedelta(hours=1)
"""How long ranks wait to meet, and for what one rank does alone: an evaluation, say."""
_MOST_SAID = 64
_SPIN = 0.001
"""Seconds for which an exchange is awaited without sleeping, and then between two looks."""


class Ranks(Protocol):
    """This process among the `count` ranks of its run, of which it is number `rank`, from 0."""

    @property
    def rank(self) -> int:
        """The number of this process; 0 decides."""
        ...

    @property
    def count(self) -> int:
        """How many processes play the run."""
        ...

    def first(self, act: Callable[[], T]) -> T:
        """What `act` gives on rank 0, which alone calls it; or what it raises, on all ranks."""
        ...

    def reduce(self, total: Tensor) -> Tensor:
        """The sum of `total`, of any shape, over all ranks; `total` itself may become it."""
        ...

    def on(self, device: torch.device) -> Ranks:
        """The same ranks, of which this one trains on `device`. All ask for it, or none."""
        ...

    def part(self, length: int) -> slice:
        """This rank's part of a vector `[length]`, which ranks share among them."""
        ...

    def claimed(self, task: str, count: int) -> Iterator[int]:
        """The numbers 0 … count - 1 in this order, each on one rank: who is done takes the next.

        `task` is a name that all ranks give it, as often as each other.
        """
        ...


@dataclass(frozen=True)
class Alone:
    """One process is the whole run."""

    rank: int = 0
    count: int = 1

    def first(self, act: Callable[[], T]) -> T:
        return act()

    def reduce(self, total: Tensor) -> Tensor:
        return total

    def on(self, device: torch.device) -> Alone:
        return self

    def part(self, length: int) -> slice:
        return slice(0, length)

    def claimed(self, task: str, count: int) -> Iterator[int]:
        return iter(range(count))


ALONE = Alone()


@dataclass(frozen=True)
class Together:
    """Ranks of a `torch.distributed` process group: gloo, by way of the CPU.

    They count at `store` what is claimed, under the name `group`: a store may outlive a group that
    failed. `alive` says whether those processes still run whose end this one would see. `cards` is
    the group by which GPUs add up among themselves, where each rank has one of its own.
    """

    rank: int
    count: int
    store: Any
    group: str
    alive: Callable[[], bool]
    cards: Any = None
    _tasks: Counter[str] = field(default_factory=Counter)

    def first(self, act: Callable[[], T]) -> T:
        outcome: tuple[Any, Exception | None] = (None, None)
        if self.rank == 0:
            try:
                outcome = act(), None
            except Exception as error:  # whatever it is: the others wait to hear of it
                outcome = None, error
        result: T
        result, raised = pickle.loads(self._broadcast(pickle.dumps(outcome)))
        if raised is not None:
            raise raised
        return result

    def reduce(self, total: Tensor) -> Tensor:
        by_cards = self.cards is not None and total.is_cuda
        summed, group = (total, self.cards) if by_cards else (total.cpu(), None)
        self._wait(lambda: dist.all_reduce(summed, group=group, async_op=True))
        return summed.to(total.device)

    def on(self, device: torch.device) -> Together:
        cards = self._gathered(card_of(device))
        if backend_of(cards) == "gloo":
            return self
        torch.cuda.set_device(device)
        with rank_lost_on_failure():
            return replace(self, cards=dist.new_group(backend="nccl", timeout=PATIENCE))

    def part(self, length: int) -> slice:
        return slice(length * self.rank // self.count, length * (self.rank + 1) // self.count)

    def claimed(self, task: str, count: int) -> Iterator[int]:
        self._tasks[task] += 1
        name = f"{self.group}/{task}/{self._tasks[task]}"
        while (number := self._next(name)) < count:
            yield number

    def _next(self, name: str) -> int:
        with rank_lost_on_failure():
            return int(self.store.add(name, 1)) - 1

    def _gathered(self, text: str) -> list[str]:
        """What each rank says, up to 64 bytes of it, by their numbers."""
        texts = torch.zeros(self.count, _MOST_SAID, dtype=torch.uint8)
        content = text.encode()[:_MOST_SAID].ljust(_MOST_SAID, b"\0")
        texts[self.rank] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        return [bytes(row.tolist()).rstrip(b"\0").decode() for row in self.reduce(texts)]

    def _broadcast(self, content: bytes) -> bytes:
        """The `content` of rank 0, on all ranks: its length goes before it."""
        size = torch.tensor([len(content)])
        self._wait(lambda: dist.broadcast(size, 0, async_op=True))
        message = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if self.rank:
            message = torch.empty(int(size), dtype=torch.uint8)
        self._wait(lambda: dist.broadcast(message, 0, async_op=True))
        return message.numpy().tobytes()

    def _wait(self, begin: Callable[[], Any]) -> None:
        """Begin an exchange and wait until it is done.

        What was sent to a process that died may never be done: so look whether all are alive.
        Raises `RankLost` otherwise.
        """
        with rank_lost_on_failure():
            work, began = begin(), time.monotonic()
            while not work.is_completed():
                waited = time.monotonic() - began
                time.sleep(0.0 if waited < _SPIN else _SPIN)
                if waited >= _SPIN and not self.alive():
                    raise RuntimeError("a process ended")
            work.wait()


@contextmanager
def rank_lost_on_failure() -> Iterator[None]:
    """A context that raises `RankLost` for what torch raises where another rank is gone."""
    try:
        yield
    except RuntimeError as error:
        raise RankLost("another process of this run has died or cannot be reached") from error


def card_of(device: torch.device) -> str:
    """What tells the GPU `device` from any other; empty for a CPU, or where NCCL is missing."""
    if device.type != "cuda" or not dist.is_nccl_available():
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)


def backend_of(cards: Sequence[str]) -> Literal["nccl", "gloo"]:
    """How ranks with these `cards` add up: all of them alike.

    NCCL wants a card of its own for each rank, and nobody without one.

    >>> backend_of(["a", "b"]), backend_of(["a", "a"]), backend_of(["a", ""])
    ('nccl', 'gloo', 'gloo')
    """
    return "nccl" if all(cards) and len(set(cards)) == len(cards) else "gloo"


def refuse_miscounted(ranks: Ranks, times: Tensor, expected: int = 1) -> None:
    """Raises `RankLost` unless each piece of what the ranks shared was done `expected` times.

    `times` says how often this rank did each piece of it. A client that two ranks count moves a sum
    by twice its bound, and where no rank draws the noise there is none.
    """
    if not bool((ranks.reduce(times) == expected).all()):
        raise RankLost(
            "the processes of this run did not count every client, or draw all noise, exactly once"
        )
