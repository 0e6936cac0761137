"""What an aggregation rule is, by what it needs to see."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class RowRule(Protocol):
    """Sees every client's row."""

    def __call__(self, rows: Tensor, byzantine: int) -> Tensor:
        """Rows `[n, d]`, up to `byzantine` of them hostile; the aggregate `[d]`."""
        ...


@runtime_checkable
class SumRule(Protocol):
    """Sees averages of what each client computes from its own row and a released center.

    `passes` times: every client computes `terms`, the terms are summed and averaged (plainly, under
    masks, or under noise), and `step` moves the center. The last center is the aggregate.
    """

    passes: int

    def sensitivity(self, relation: str) -> float:
        """L2 norm by which one client can change the sum of terms, or infinity.

        Infinite means that the rule bounds nothing: a mechanism's clip has to.
        """
        ...

    def terms(self, rows: Tensor, center: Tensor) -> Tensor:
        """On the client: rows `[c, d]` and center `[d]` to terms `[c, m]`."""
        ...

    def step(self, center: Tensor, released: Tensor) -> Tensor:
        """The next center `[d]` from the released average of terms `[m]`."""
        ...
