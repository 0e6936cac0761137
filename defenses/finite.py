"""Selection of usable rows: those that are finite and not too long."""

from __future__ import annotations

from defenses.deferred import Tensor, torch

LONGEST = 1e15
"""Largest norm of a usable row; squared distances of such float32 rows are far from overflow."""
SHORTEST = 1e-20
"""Norm below which the direction of a row counts as undefined."""


def usable(rows: Tensor) -> Tensor:
    """Returns a mask `[n]` bool of the `rows` `[n, d]` that are finite and whose norm is at most
    1e15.
    """
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms <= LONGEST


def usable_places(rows: Tensor) -> Tensor | None:
    """Returns the indices `[m]` of the usable rows of `rows` `[n, d]`; None if all are usable."""
    good = usable(rows)
    return None if bool(good.all()) else good.nonzero().squeeze(1)
