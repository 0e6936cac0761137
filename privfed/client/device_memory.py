"""Measures how many clients fit in the memory of a device, before any privacy is charged.

A round that runs out of GPU memory was already charged. The memory per client is therefore measured
at start-up, on synthetic clients, and chunks stay within the free memory, less a margin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from privfed.core.errors import ran_out_of_memory

MARGIN = 0.2
"""Fraction of the free memory left unused: clients differ, and allocators leave gaps."""
_AFTER_TRAINING = 28
"""Bytes per number of a trained row: the row, the rule's result and its clipped copy in float32,
and two copies of eight bytes (encoded, summed).
"""


@dataclass(frozen=True)
class CudaMemory:
    """The memory of the GPU `device`, which `sharing` processes share evenly."""

    device: torch.device
    sharing: int = 1

    def free(self) -> int:
        """Returns this process's even share of the bytes that are still free on the GPU.

        Memory that PyTorch has reserved in this process but does not use counts as free.
        """
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return int(torch.cuda.mem_get_info(self.device)[0] + unused) // self.sharing

    def peak(self, act: Callable[[], object]) -> int:
        """Runs `act`; returns the peak of allocated bytes meanwhile, minus the bytes before."""
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        act()
        torch.cuda.synchronize(self.device)
        return int(torch.cuda.max_memory_allocated(self.device) - before)


def memory_of(device: torch.device, processes: int = 1, named: bool = False) -> CudaMemory | None:
    """Returns the memory of `device`; None for a CPU, whose memory the system manages.

    Args:
      device: the device of this process.
      processes: number of processes that train on this machine.
      named: whether all processes use the GPU `device`; otherwise they are spread over all GPUs.
    """
    if device.type != "cuda":
        return None
    cards = 1 if named else torch.cuda.device_count()
    return CudaMemory(device, math.ceil(processes / max(cards, 1)))


@dataclass(frozen=True)
class MemoryNeed:
    """Memory of a chunk of c clients: `fixed` + c * `each` bytes."""

    fixed: int
    each: int

    def clients(self, free: int, held: int = 0, margin: float = MARGIN) -> int:
        """Returns the number of clients that fit in (1 - `margin`) `free` - `held` bytes.

        The result is 0 if none fits. `held` are bytes in use by other objects.

        >>> MemoryNeed(fixed=100, each=50).clients(free=1000, margin=0.2)
        14
        >>> MemoryNeed(fixed=100, each=50).clients(free=1000, held=700)
        0
        """
        room = int(free * (1 - margin)) - held - self.fixed
        return max(0, room // max(self.each, 1))


def memory_need(
    train: Callable[[int], object], memory: CudaMemory, length: int
) -> MemoryNeed | None:
    """Measures the memory that training takes, as a function of the number of clients.

    Args:
      train: trains as many clients as its argument states.
      memory: the device memory.
      length: numbers in a client's row.

    Returns:
      The memory needed, or None if a single client does not fit.
    """
    try:
        train(1)  # libraries allocate memory at first use, which is not counted
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
    return MemoryNeed(max(first - each, 0), each)
