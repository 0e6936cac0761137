"""The plain sum: the server is trusted with the rows, and keeps only their total."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfed.parts import Part
from privfed.privacy.mechanism import BoundedRows, BoundedSum
from privfed.secure.summation import Session


class PlainSum(Part):
    """No secure sum: the server sees rows.

    Sums in float64, chunk by chunk, in the order given: memory is flat in the cohort.
    """

    def open(self, session: Session, length: int) -> PlainAccumulator:
        return PlainAccumulator(length)


class PlainAccumulator:
    """One total `[m]`. Each client once: twice would double its sensitivity."""

    def __init__(self, length: int) -> None:
        self._total: Tensor = torch.zeros(length, dtype=torch.float64)
        self._bounds: set[float] = set()
        self._seen: set[int] = set()

    def add(self, ids: NDArray[np.int64], rows: BoundedRows) -> None:
        count = len(self._seen) + len(ids)
        self._seen.update(ids.tolist())
        if len(self._seen) != count or len(ids) != len(rows.rows):
            raise ValueError("each client adds exactly one row to a sum")
        self._bounds.add(rows.bound)
        if len(self._bounds) > 1:
            raise ValueError(f"rows of one sum share one bound; found {sorted(self._bounds)}")
        self._total = self._total.to(rows.rows.device) + rows.rows.sum(0, dtype=torch.float64)

    def close(self) -> BoundedSum:
        bound = self._bounds.pop() if self._bounds else 0.0
        return BoundedSum(self._total, bound, len(self._seen))
