"""Signs: one bit of each number (Bernstein, Wang, Azizzadenesheli & Anandkumar 2018, signSGD) times
the mean size of a row (Karimireddy, Rebjock, Stich & Jaggi 2019, Algorithm 1, "error feedback fixes
signSGD", where the memory is).

With aggregation.rule = "sign_majority" the server takes a majority of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from privfed.local.compression.compression import CompressionPart, Sending
from privfed.local.objective import Memory
from privfed.vector import Shapes

if TYPE_CHECKING:
    from torch import Tensor


class Sign(CompressionPart):
    """The sign of each number, times the mean size of the row's numbers.

    A client sends d bits and one number. Not linear: the server is sent each row by itself. Biased;
    with error feedback it goes where plain updates go.
    """

    linear: ClassVar[bool] = False
    fresh: ClassVar[bool] = False

    error_feedback: bool = False
    """Whether clients remember what was left off, and send it later: for clients that return."""

    @property
    def keeps(self) -> int:
        return int(self.error_feedback)

    def length(self, shapes: Shapes) -> int:
        return shapes.length

    def bits(self, shapes: Shapes) -> float:
        return shapes.length + 32

    def encode(
        self, updates: Tensor, error: Tensor | None, sending: Sending
    ) -> tuple[Tensor, Tensor | None]:
        corrected = updates if error is None else updates + error
        sent = corrected.sign() * corrected.abs().mean(1, keepdim=True)
        return sent, None if error is None else corrected - sent

    def decode(self, released: Tensor, sending: Sending, memory: Memory) -> tuple[Tensor, Memory]:
        return released, memory
