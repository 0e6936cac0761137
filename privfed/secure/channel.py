"""What carries encoded rows to their sum."""

from __future__ import annotations

from typing import Protocol

from privfed.privacy.integers import Integers


class Channel(Protocol):
    """Carries whole numbers of clients to their sum. Whoever runs it sees no client's numbers."""

    largest: float
    """The largest number that it takes from a client."""

    def send(self, client: int, row: Integers) -> None:
        """One client's encoded row `[m]`, to which layers of noise are yet to come."""
        ...

    def total(self) -> tuple[Integers, int]:
        """The sum of those who sent and stayed, and how many they are. Raises `Aborted`."""
        ...
