"""Numbers as a row of blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """`values` from left to right in at most `width` blocks, the highest for the greatest of all.

    Of more values each block shows the last of its share. One that is not finite is a gap.

    >>> sparkline([0.1, 0.5, 0.9], 8)
    '▁▅█'
    """
    ends = [(block + 1) * len(values) // width for block in range(width)]
    shown = list(values) if len(values) <= width else [values[end - 1] for end in ends]
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(_block(value, low, high) for value in shown)


def _block(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return " "
    if high == low:
        return BLOCKS[len(BLOCKS) // 2]
    return BLOCKS[min(int((value - low) / (high - low) * len(BLOCKS)), len(BLOCKS) - 1)]
