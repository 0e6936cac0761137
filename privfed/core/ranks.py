"""The processes (ranks) of one run: every rank trains some clients; rank 0 samples and charges.

All ranks go through the same rounds. Only rank 0 has the ledger and the run directory; it samples
cohorts and broadcasts them. Each rank trains some clients of the cohort, and adds the noise of some
coordinates to the sum of their updates; the ranks' sums are all-reduced.

Messages between ranks are not encrypted: the ranks are one party on one trusted network.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from privfed.core.errors import RankLost

T = TypeVar("T")
PATIENCE = timedelta(hours=1)
"""Time limit for ranks to meet, and for work that one rank does alone, such as an evaluation."""
_TEXT_BYTES = 64
_SPIN = 0.001
"""Seconds of busy waiting for an exchange, and afterwards the interval between two checks."""


@dataclass(frozen=True)
class SingleProcess:
    """The only process of a run, with the interface of `Together`."""

    rank: int = 0
    count: int = 1

    def first(self, act: Callable[[], T]) -> T:
        """Calls `act` on rank 0 only; returns its result, or raises its exception, on all ranks."""
        return act()

    def reduce(self, total: Tensor) -> Tensor:
        """Returns the sum of `total`, of any shape, over all ranks; may overwrite `total`."""
        return total

    def on(self, device: torch.device) -> SingleProcess:
        """Returns these ranks, set up to sum tensors on `device`. All ranks call this, or none."""
        return self

    def part(self, length: int) -> slice:
        """Returns this rank's slice of a vector `[length]`, of which each rank has one slice."""
        return slice(0, length)

    def claimed(self, task: str, count: int) -> Iterator[int]:
        """Yields the numbers, out of 0 … count - 1, of the pieces of a task that this rank does.

        A rank that asks for its next piece gets the smallest number that no rank has yet.

        Args:
          task: a name; all ranks call this with the same names, equally often.
          count: number of pieces of the task.
        """
        return iter(range(count))


SINGLE_PROCESS = SingleProcess()


@dataclass(frozen=True)
class Together:
    """This process as a rank of a `torch.distributed` process group; gloo sends CPU tensors.

    `store` counts the numbers that `claimed` has yielded. It may outlive a failed process group, so
    the counters' names begin with `group`, a new random text for each process group. `alive`
    reports whether the processes that this one monitors still run. `cards` is the process group for
    sums among GPUs, if each rank has its own GPU.
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
            except Exception as error:  # of any type, since the other ranks wait for the outcome
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
        """Returns the `text` of each rank, cut to 64 bytes, in the order of the ranks."""
        texts = torch.zeros(self.count, _TEXT_BYTES, dtype=torch.uint8)
        content = text.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")
        texts[self.rank] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        return [bytes(row.tolist()).rstrip(b"\0").decode() for row in self.reduce(texts)]

    def _broadcast(self, content: bytes) -> bytes:
        """Returns the `content` of rank 0 on all ranks; it is sent after its length."""
        size = torch.tensor([len(content)])
        self._wait(lambda: dist.broadcast(size, 0, async_op=True))
        message = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if self.rank:
            message = torch.empty(int(size), dtype=torch.uint8)
        self._wait(lambda: dist.broadcast(message, 0, async_op=True))
        return message.numpy().tobytes()

    def _wait(self, begin: Callable[[], Any]) -> None:
        """Begins an operation of the process group by `begin`, and waits until it is complete.

        A message to a process that died may never complete, so the ranks are checked meanwhile.
        Raises `RankLost` if a rank has died.
        """
        with rank_lost_on_failure():
            work, began = begin(), time.monotonic()
            while not work.is_completed():
                waited = time.monotonic() - began
                time.sleep(0.0 if waited < _SPIN else _SPIN)
                if waited >= _SPIN and not self.alive():
                    raise RuntimeError("a process ended")
            work.wait()


Ranks = SingleProcess | Together
"""This process as one of the `count` ranks of its run, with number `rank` counted from 0."""


@contextmanager
def rank_lost_on_failure() -> Iterator[None]:
    """Returns a context that converts torch's error about a lost rank to `RankLost`."""
    try:
        yield
    except RuntimeError as error:
        raise RankLost("another process of this run has died or cannot be reached") from error


def card_of(device: torch.device) -> str:
    """Returns the identifier of the GPU `device`; empty for a CPU, or if NCCL is missing."""
    if device.type != "cuda" or not dist.is_nccl_available():
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)


def backend_of(cards: Sequence[str]) -> Literal["nccl", "gloo"]:
    """Returns the backend for sums over ranks, given each rank's GPU in `cards` ("" for none).

    NCCL requires a separate GPU for every rank.

    >>> backend_of(["a", "b"]), backend_of(["a", "a"]), backend_of(["a", ""])
    ('nccl', 'gloo', 'gloo')
    """
    return "nccl" if all(cards) and len(set(cards)) == len(cards) else "gloo"


def refuse_miscounted(ranks: Ranks, times: Tensor, expected: int = 1) -> None:
    """Raises `RankLost` unless all ranks together did each piece of a task `expected` times.

    A client counted on two ranks would change a sum by twice its bound, and noise that no rank
    draws would be missing.

    Args:
      ranks: the ranks of the run.
      times: how often this rank did each piece of the task, shape [n].
      expected: the required total over all ranks.
    """
    if not bool((ranks.reduce(times) == expected).all()):
        raise RankLost(
            "the processes of this run did not count every client, or draw all noise, exactly once"
        )
