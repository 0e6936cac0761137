"""Wide rows in blocks of columns whose float64 copies stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from privfed.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor

_NUMBERS, _ELSEWHERE = 1 << 16, 1 << 26
"""The numbers of a block: half a megabyte as float64 on a CPU, half a gigabyte elsewhere."""


def blocks(rows: Tensor) -> Iterator[slice]:
    """Slices that part the columns of `rows` `[c, m]`, of fewer numbers on a CPU than elsewhere.

    >>> import torch
    >>> list(blocks(torch.zeros(4, 40000)))
    [slice(0, 16384, None), slice(16384, 32768, None), slice(32768, 40000, None)]
    """
    count, width = rows.shape
    numbers = _NUMBERS if rows.device.type == "cpu" else _ELSEWHERE
    step = numbers // max(count, 1)
    for start in range(0, width, max(step, 1)):
        yield slice(start, min(start + max(step, 1), width))


def averaged(total: Tensor, divisor: float) -> Tensor:
    """`total` `[m]` over `divisor`, in float32; in float64 there are a few numbers at a time."""
    average = total.new_empty(len(total), dtype=torch.float32)
    for block in blocks(total[None]):
        average[block] = total[block] / divisor
    return average
