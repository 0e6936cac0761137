"""How many clients fit the memory of a device: decided before anything is charged.

A GPU does not give back what a run asks too much of: a round that runs out of memory was charged
already. So the memory that clients take is measured at start-up, on made-up ones, and chunks stay
within what is free, less a margin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from privfed.core.errors import ran_out_of_memory

MARGIN = 0.2
"""The part of the free memory that is left alone: clients differ, and allocators leave gaps."""
_AFTER_TRAINING = 28
"""Bytes for each number of a row once it is trained: the row, what the rule makes of it and its
clipped copy in float32, and two copies of eight bytes (encoded, summed)."""


class DeviceMemory(Protocol):
    """The memory of a device that has an end."""

    def free(self) -> int:
        """How many bytes this process can still have."""
        ...

    def peak(self, act: Callable[[], object]) -> int:
        """How many bytes more than before `act` holds at most."""
        ...


@dataclass(frozen=True)
class CudaMemory:
    """The memory of a GPU, of which `sharing` processes have a part each."""

    device: torch.device
    sharing: int = 1

    def free(self) -> int:
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return int(torch.cuda.mem_get_info(self.device)[0] + unused) // self.sharing

    def peak(self, act: Callable[[], object]) -> int:
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        act()
        torch.cuda.synchronize(self.device)
        return int(torch.cuda.max_memory_allocated(self.device) - before)


def memory_of(device: torch.device, processes: int = 1, named: bool = False) -> DeviceMemory | None:
    """The memory of `device`; None for a CPU, whose system has means of its own.

    So many `processes` of this machine train at once, on its cards in turn or all on one `named`.
    """
    if device.type != "cuda":
        return None
    cards = 1 if named else torch.cuda.device_count()
    return CudaMemory(device, math.ceil(processes / max(cards, 1)))


@dataclass(frozen=True)
class Need:
    """What a chunk of c clients takes: `fixed` + c * `each` bytes."""

    fixed: int
    each: int

    def clients(self, free: int, held: int = 0, margin: float = MARGIN) -> int:
        """How many clients fit `free` bytes, of which something else takes `held`; 0: none does.

        >>> Need(fixed=100, each=50).clients(free=1000, margin=0.2)
        14
        >>> Need(fixed=100, each=50).clients(free=1000, held=700)
        0
        """
        room = int(free * (1 - margin)) - held - self.fixed
        return max(0, room // max(self.each, 1))


def need_of(train: Callable[[int], object], memory: DeviceMemory, length: int) -> Need | None:
    """What clients take who `train`, as many as it is called with, each a row of `length`.

    None where there is not enough memory for a single one.
    """
    try:
        train(1)  # what libraries need for themselves is not counted, and not free afterwards
        first = memory.peak(lambda: train(1))
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        return None
    try:
        further = memory.peak(lambda: train(2)) - first
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        further = first
    each = max(further, _AFTER_TRAINING * length)
    return Need(max(first - each, 0), each)
