"""What is public of a task before anything is read, for the defaults that suit it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """`squared_norm`: |x|^2 of no example is above it; None: none is declared.

    `cohort`: the expected size of one.
    """

    squared_norm: float | None
    cohort: float
