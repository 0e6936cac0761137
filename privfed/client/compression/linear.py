"""Compression by a public matrix A `[m, d]` with orthonormal rows, times a subspace's own scale.

A client sends A u, and the server takes A^T of the release, in two ways:

- *Unbiased*: E[A^T A] = diag(1 / scales), so scales * A^T A u is u on average over the coins.
- *Error feedback*: A^T A is a projection, and never lengthens what is left off, u - A^T A u. Then
  nothing is scaled up, and the client sends the rest in later rounds.

A has norm 1, so what is sent is no longer than the update, and mostly by `factor` shorter: choose
the clip for what is sent. Scales are applied to the release, after clip and noise.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from privfed.client.compression.compression import ErrorFeedback, Sending, Space
from privfed.client.objective import Memory
from privfed.core.deferred import Tensor
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
