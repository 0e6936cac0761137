"""Numbers too small to be normal ones, which take a processor a hundred times as long.

Whoever chooses the model would else choose how long training takes for whom (PRIVACY, section 9.1,
S1): at a site they count as zero.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def flushed_denormals() -> Iterator[None]:
    """Denormals are zero in this thread, and in those that it starts, until the block ends.

    It is then as it was before, so that blocks may lie in each other.
    """
    before = flushes_denormals()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def flushes_denormals() -> bool:
    """Whether denormals are zero in this thread: half of the least normal number is tried."""
    return sys.float_info.min / 2 == 0.0
