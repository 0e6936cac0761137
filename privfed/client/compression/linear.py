"""Compression by a public matrix A `[m, d]` with orthonormal rows, times a subspace's own scale.

A client sends A u, and the server takes A^T of the release, in two ways:

- *Unbiased*: E[A^T A] = diag(1 / scales), so scales * A^T A u is u on average over the coins.
- *Error feedback*: A^T A is a projection, and never lengthens what is left off, u - A^T A u. Then
  nothing is scaled up, and the client sends the rest in later rounds.

A has norm 1, so what is sent is no longer than the update, and mostly by `factor` shorter: choose
the clip for what is sent. Scales are applied to the release, after clip and noise.

Random masks: a public random set of coordinates is sent each round (Konecny, McMahan, Yu,
Richtarik, Suresh & Bacon 2016, "Federated learning: strategies for improving communication
efficiency", section 2, structured updates, and section 3, subsampling).

All clients of a round send the same coordinates, so that sums stay sums. The paper lets each client
draw its own by a seed that it sends; under a secure sum the server could not tell these apart.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from pydantic import Field

from privfed.client.compression.compression import ErrorFeedback, Sending, Space
from privfed.client.objective import Memory
from privfed.core.deferred import Tensor, torch
from privfed.core.vector import Shapes


class Projection(Protocol):
    """The matrix A of a round."""

    def apply(self, rows: Tensor) -> Tensor:
        """A u of each of `rows` `[c, d]`: `[c, m]`."""
        ...

    def back(self, sent: Tensor) -> Tensor:
        """A^T s of each of `sent` `[c, m]`: `[c, d]`."""
        ...

    def scales(self) -> Tensor:
        """What each coordinate of A^T A u is multiplied by to be unbiased: `[d]` or `[]`."""
        ...


class Linear(ErrorFeedback):
    """A public random projection, drawn anew each round."""

    def factor(self, shapes: Shapes) -> float:
        return float((self.length(shapes) / shapes.length) ** 0.5)

    @abstractmethod
    def length(self, shapes: Shapes) -> int:
        """How many numbers a row has."""

    @abstractmethod
    def projection(self, space: Space, number: int) -> Projection:
        """The matrix of the round of this `number`."""

    def encode(
        self, updates: Tensor, error: Tensor | None, sending: Sending
    ) -> tuple[Tensor, Tensor | None]:
        """What is sent of the updates, and what of them and of former rounds is left off."""
        projection = self.projection(sending.space, sending.number)
        if error is None:
            return projection.apply(updates), None
        corrected = updates + error
        sent = projection.apply(corrected)
        return sent, corrected - projection.back(sent)

    def decode(self, released: Tensor, sending: Sending, memory: Memory) -> tuple[Tensor, Memory]:
        """The release in the model's own coordinates, scaled up where nobody sends the rest."""
        projection = self.projection(sending.space, sending.number)
        update = projection.back(released[None])[0]
        return update if self.error_feedback else update * projection.scales().to(update), memory


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
