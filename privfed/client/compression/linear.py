"""Compression by a public matrix A `[m, d]` with orthonormal rows, and a scale for each coordinate.

A client sends A u, and the server applies A^T to the release, in two variants:

- *Unbiased*: E[A^T A] = diag(1 / scales), so scales * A^T A u equals u in expectation.
- *Error feedback*: A^T A is a projection, and never lengthens the residual u - A^T A u. Nothing is
  scaled up, and the client sends the residual in later rounds.

A has norm 1, so the norm of a message is at most the update's, and typically `factor` times that:
choose the clip for messages. Scales are applied to the release, after clip and noise.

Random masks: a public random set of coordinates is sent in each round (Konecny, McMahan, Yu,
Richtarik, Suresh & Bacon 2016, "Federated learning: strategies for improving communication
efficiency", section 2, structured updates, and section 3, subsampling).

All clients of a round send the same coordinates, so their messages can be summed. In the paper,
each client draws its own coordinates by a seed that it sends; under a secure sum, the server sees
no single message to which it could apply a seed.
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
    """The public matrix A `[m, d]` of a round, with orthonormal rows."""

    def apply(self, rows: Tensor) -> Tensor:
        """Returns A u for each of `rows` `[c, d]`: `[c, m]`."""

    def back(self, sent: Tensor) -> Tensor:
        """Returns A^T s for each of `sent` `[c, m]`: `[c, d]`."""

    def scales(self) -> Tensor:
        """Returns the factors by coordinate, `[d]` or one scalar, that make A^T A u unbiased."""


class Linear(ErrorFeedback):
    """Base class of compressions by a public random projection, drawn anew in each round."""

    def factor(self, shapes: Shapes) -> float:
        return float((self.length(shapes) / shapes.length) ** 0.5)

    @abstractmethod
    def length(self, shapes: Shapes) -> int:
        """Returns the number of values of a row."""

    @abstractmethod
    def projection(self, space: Space, number: int) -> Projection:
        """Returns the matrix of round `number`."""

    def encode(
        self, updates: Tensor, error: Tensor | None, sending: Sending
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the projected updates `[c, m]`, and the new residuals `[c, d]` or None."""
        projection = self.projection(sending.space, sending.number)
        if error is None:
            return projection.apply(updates), None
        corrected = updates + error
        sent = projection.apply(corrected)
        return sent, corrected - projection.back(sent)

    def decode(self, released: Tensor, sending: Sending, memory: Memory) -> tuple[Tensor, Memory]:
        """Returns the update `[d]`, A^T times the release, and `memory` unchanged.

        Without error feedback the update is multiplied by the projection's `scales`.
        """
        projection = self.projection(sending.space, sending.number)
        update = projection.back(released[None])[0]
        return update if self.error_feedback else update * projection.scales().to(update), memory


class RandomMask(Linear):
    """A public random set of coordinates, new in each round, the same for all clients.

    A client sends the m = round(`fraction` * d) selected coordinates, at least one, and clips the
    vector of these. Without error feedback the release is multiplied by d / m. The compression is
    linear: secure sums and noise are supported, and a round's privacy event is that of an
    uncompressed round. Noise has only m coordinates: with clip sqrt(m / d) C, its norm on the model
    equals that of uncompressed rows with clip C.
    """

    fraction: float = Field(0.1, gt=0, le=1)
    """Fraction of the coordinates sent."""

    def length(self, shapes: Shapes) -> int:
        return max(1, round(self.fraction * shapes.length))

    def projection(self, space: Space, number: int) -> Mask:
        return _mask(space, number, self.length(space.shapes))


@dataclass(frozen=True)
class Mask:
    """The indices `places` `[m]` of the sent coordinates, of `d` in all, in ascending order."""

    places: Tensor
    d: int

    def apply(self, rows: Tensor) -> Tensor:
        """Returns the sent coordinates `[c, m]` of `rows` `[c, d]`."""
        return rows.index_select(1, self.places.to(rows.device))

    def back(self, sent: Tensor) -> Tensor:
        """Returns rows `[c, d]` with `sent` `[c, m]` at the sent coordinates, else zero."""
        rows = sent.new_zeros(len(sent), self.d)
        return rows.index_copy_(1, self.places.to(sent.device), sent)

    def scales(self) -> Tensor:
        """Returns the factor d / m."""
        return torch.tensor(self.d / len(self.places))


@functools.lru_cache(maxsize=4)
def _mask(space: Space, number: int, count: int) -> Mask:
    words = space.keys(number).bits(space.shapes.length)
    smallest = np.argpartition(words, count - 1)[:count]
    return Mask(torch.from_numpy(np.sort(smallest)), space.shapes.length)
