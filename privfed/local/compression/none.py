"""No compression: a client sends its objective's message."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from privfed.local.compression.compression import CompressionPart, Sending
from privfed.local.objective import Memory
from privfed.vector import Shapes

if TYPE_CHECKING:
    from torch import Tensor


class NoCompression(CompressionPart):
    """Messages are sent as they are."""

    compresses: ClassVar[bool] = False
    fresh: ClassVar[bool] = False

    def length(self, shapes: Shapes) -> int:
        return shapes.length

    def encode(
        self, updates: Tensor, error: Tensor | None, sending: Sending
    ) -> tuple[Tensor, Tensor | None]:
        return updates, error

    def decode(self, released: Tensor, sending: Sending, memory: Memory) -> tuple[Tensor, Memory]:
        return released, memory
