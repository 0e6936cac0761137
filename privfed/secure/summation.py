"""What a summation is: something that adds clients' rows and gives back their total only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from privfed.privacy.mechanism import BoundedRows, BoundedSum


@dataclass(frozen=True)
class Session:
    """What one sum is bound to: an exchange of a round, and the model that was broadcast."""

    round: int
    exchange: int
    model_hash: bytes


class Aborted(Exception):
    """A sum that cannot be completed. Its round is charged and consumed, never repeated."""


class Accumulator(Protocol):
    def add(self, ids: NDArray[np.int64], rows: BoundedRows) -> None:
        """Add rows `[c, m]` of clients `ids` `[c]`; each client once per session."""
        ...

    def close(self) -> BoundedSum:
        """The total of the survivors. Raises `Aborted`."""
        ...


class Summation(Protocol):
    def open(self, session: Session, length: int) -> Accumulator: ...
