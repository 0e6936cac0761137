"""The largest coordinates of each client's update (Aji & Heafield 2017), with a memory of the rest
(Stich, Cordonnier & Jaggi 2018, "Sparsified SGD with memory", Algorithm 1).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from privfed.deferred import torch
from privfed.local.compression.compression import CompressionPart, Sending
from privfed.local.objective import Memory
from privfed.vector import Shapes

if TYPE_CHECKING:
    from torch import Tensor


class TopK(CompressionPart):
    """Each client's largest coordinates, and where they are.

    A client sends 32 bits and a place for each of fraction d numbers (or all, where that is less),
    and, with error feedback, keeps the rest. Not linear: which coordinates these are hangs on the
    row, so that the server is sent each by itself. Where noise is the server's, the row is clipped
    before it is summed.
    """

    linear: ClassVar[bool] = False
    fresh: ClassVar[bool] = False

    fraction: float = Field(0.1, gt=0, le=1)
    """Which part of the coordinates is sent."""
    error_feedback: bool = True
    """Whether clients remember what was left off, and send it later: for clients that return."""

    @property
    def keeps(self) -> int:
        return int(self.error_feedback)

    def length(self, shapes: Shapes) -> int:
        return shapes.length

    def bits(self, shapes: Shapes) -> float:
        place = math.ceil(math.log2(shapes.length + 1))
        return min(self._count(shapes.length) * (32 + place), 32 * shapes.length)

    def _count(self, d: int) -> int:
        return max(1, round(self.fraction * d))

    def encode(
        self, updates: Tensor, error: Tensor | None, sending: Sending
    ) -> tuple[Tensor, Tensor | None]:
        corrected = updates if error is None else updates + error
        largest = corrected.abs().topk(self._count(corrected.shape[1]), dim=1).indices
        sent = torch.zeros_like(corrected).scatter_(1, largest, corrected.gather(1, largest))
        return sent, None if error is None else corrected - sent

    def decode(self, released: Tensor, sending: Sending, memory: Memory) -> tuple[Tensor, Memory]:
        return released, memory
