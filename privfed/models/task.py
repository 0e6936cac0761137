"""What is public of a task before any data are read, for the defaults that suit it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """Public constants of a task.

    `squared_norm` bounds |x|^2 of every example (None: no bound is declared), and `cohort` is the
    expected number of clients in a round.
    """

    squared_norm: float | None
    cohort: float
