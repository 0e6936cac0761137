"""The largest coordinates of each client's update, with error feedback.

Source: Aji & Heafield 2017; error feedback: Stich, Cordonnier & Jaggi 2018, "Sparsified SGD with
memory", Algorithm 1.
"""

from __future__ import annotations

import math

from pydantic import Field

from privfed.client.compression.compression import Biased
from privfed.core.deferred import Tensor, torch
from privfed.core.vector import Shapes


class TopK(Biased):
    """Each client's largest coordinates, and their indices.

    A client sends round(fraction * d) numbers (at least one) of 32 bits, each with its index, or
    all d numbers if those take fewer bits. With error feedback it keeps the residual. The
    compression is not linear, since the selected coordinates depend on the row; so the server
    receives each row. If the server adds the noise, it clips rows before it sums them.
    """

    fraction: float = Field(0.1, gt=0, le=1)
    """Fraction of the coordinates sent."""
    error_feedback: bool = True
    """Whether clients keep the compression residual and send it later; needs clients
    that return.
    """

    def bits(self, shapes: Shapes) -> float:
        place = math.ceil(math.log2(shapes.length + 1))
        return min(self._count(shapes.length) * (32 + place), 32 * shapes.length)

    def _count(self, d: int) -> int:
        return max(1, round(self.fraction * d))

    def shortened(self, rows: Tensor) -> Tensor:
        largest = rows.abs().topk(self._count(rows.shape[1]), dim=1).indices
        return torch.zeros_like(rows).scatter_(1, largest, rows.gather(1, largest))
