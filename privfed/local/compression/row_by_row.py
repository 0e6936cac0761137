"""Compressions of each client's row by itself, which is written down in fewer bits."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from privfed.local.compression.compression import CompressionPart, ErrorFeedback, Sending
from privfed.local.objective import Memory
from privfed.vector import Shapes

if TYPE_CHECKING:
    from torch import Tensor


class RowByRow(CompressionPart):
    """All numbers of a row stand for themselves: the server takes a release as it is."""

    linear: ClassVar[bool] = False
    fresh: ClassVar[bool] = False

    def length(self, shapes: Shapes) -> int:
        return shapes.length

    @abstractmethod
    def bits(self, shapes: Shapes) -> float:
        """Bits that a row takes."""

    def decode(self, released: Tensor, sending: Sending, memory: Memory) -> tuple[Tensor, Memory]:
        return released, memory


class Biased(RowByRow, ErrorFeedback):
    """What is sent of a row is not that row on average: clients may remember the rest."""

    @abstractmethod
    def shortened(self, rows: Tensor) -> Tensor:
        """What is sent of `rows` `[c, d]`: `[c, d]`."""

    def encode(
        self, updates: Tensor, error: Tensor | None, sending: Sending
    ) -> tuple[Tensor, Tensor | None]:
        corrected = updates if error is None else updates + error
        sent = self.shortened(corrected)
        return sent, None if error is None else corrected - sent
