"""Random masks: a public random set of coordinates is sent each round (Konecny, McMahan, Yu,
Richtarik, Suresh & Bacon 2016, "Federated learning: strategies for improving communication
efficiency", section 2, structured updates, and section 3, subsampling).

All clients of a round send the same coordinates, so that sums stay sums. The paper lets each client
draw its own by a seed that it sends; under a secure sum the server could not tell these apart.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from privfed.client.compression.compression import Space
from privfed.client.compression.linear import Linear
from privfed.core.deferred import Tensor, torch
from privfed.core.vector import Shapes


class RandomMask(Linear):
    """A public random set of coordinates, another each round, the same for all clients.

    A client sends m = fraction d numbers, clipped after the others were left out; the release is
    multiplied by d / m. Linear: goes with secure sums and noise, for the event of a round without
    it. Its noise has m coordinates: at the clip sqrt(m / d) C it is, on the model, as long as that
    of whole rows at the clip C.
    """

    fraction: float = Field(0.1, gt=0, le=1)
    """Which part of the coordinates is sent."""

    def length(self, shapes: Shapes) -> int:
        return max(1, round(self.fraction * shapes.length))

    def projection(self, space: Space, number: int) -> Mask:
        return _mask(space, number, self.length(space.shapes))


@dataclass(frozen=True)
class Mask:
    """The coordinates `places` `[m]` of `d`, in ascending order."""

    places: Tensor
    d: int

    def apply(self, rows: Tensor) -> Tensor:
        """These coordinates of `rows` `[c, d]`."""
        return rows.index_select(1, self.places.to(rows.device))

    def back(self, sent: Tensor) -> Tensor:
        """Rows `[c, d]` that are zero elsewhere."""
        rows = sent.new_zeros(len(sent), self.d)
        return rows.index_copy_(1, self.places.to(sent.device), sent)

    def scales(self) -> Tensor:
        """The coordinates of a model over those that are sent."""
        return torch.tensor(self.d / len(self.places))


@functools.lru_cache(maxsize=4)
def _mask(space: Space, number: int, count: int) -> Mask:
    words = space.coins(number).bits(space.shapes.length)
    smallest = np.argpartition(words, count - 1)[:count]
    return Mask(torch.from_numpy(np.sort(smallest)), space.shapes.length)
