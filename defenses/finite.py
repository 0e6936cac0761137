"""Which rows can be computed with: one that is not finite is known to be hostile, or broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from defenses.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor

LONGEST = 1e15
"""The norm up to which squared distances between float32 rows are finite, and far from it."""
SHORTEST = 1e-20
"""The norm below which a row has no direction to speak of."""


def usable(rows: Tensor) -> Tensor:
    """Which of `rows` `[n, d]` are finite and no longer than 1e15: `[n]` bool."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms <= LONGEST


def keep_usable(rows: Tensor, byzantine: int) -> tuple[Tensor | None, int]:
    """Which rows to keep, `[m]` places or None for all, and how many of these may be hostile.

    Every row that is left out was one of the `byzantine` hostile ones, while there are any.
    """
    good = usable(rows)
    left_out = len(rows) - int(good.sum())
    keep = good.nonzero().squeeze(1) if left_out else None
    return keep, max(0, byzantine - left_out)
