"""Which rows can be computed with: one that is not finite is hostile, or an honest one, broken."""

from __future__ import annotations

from defenses.deferred import Tensor, torch

LONGEST = 1e15
"""The norm up to which squared distances between float32 rows are finite, and far from it."""
SHORTEST = 1e-20
"""The norm below which a row has no direction to speak of."""


def usable(rows: Tensor) -> Tensor:
    """Which of `rows` `[n, d]` are finite and no longer than 1e15: `[n]` bool."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms <= LONGEST


def usable_places(rows: Tensor) -> Tensor | None:
    """The places `[m]` of the usable ones of `rows` `[n, d]`; None where all are."""
    good = usable(rows)
    return None if bool(good.all()) else good.nonzero().squeeze(1)
