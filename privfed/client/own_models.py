"""Clients that train models of their own, and send predictions only (FedMD, Li & Wang 2019).

A client's model may have another architecture than the server's. In each round the client distils
its model from the server's predictions for the public examples, trains it on its own examples, and
sends its predictions (`privfed.client.compression.soft_labels`).

A row depends on the client's examples, its random numbers, released values and its own state, so
clients' own models add no privacy loss beyond the row's (`privfed.client.client_states`).
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from pydantic import SkipValidation
from torch import Tensor

from privfed.client.around import Around
from privfed.client.compression.compression import Student
from privfed.client.exchange import Broadcast
from privfed.client.objective import Work


@runtime_checkable
class Predictions(Protocol):
    """A compression by which clients may send predictions of their own models."""

    keep_models: bool
    """Whether clients keep their own model between rounds."""

    def rows(self, outputs: Tensor, broadcast: Broadcast) -> Tensor:
        """Returns the rows `[c, m k]` of clients.

        Args:
          outputs: outputs of their models for the public examples, shape [c, m, k].
          broadcast: released values by name.
        """

    def targets(self, broadcast: Broadcast) -> Tensor:
        """Returns the distributions `[m, k]` that clients distil from."""

    def distilled(self, student: Student, models: Tensor, targets: Tensor) -> Tensor:
        """Returns models `[c, d]`, distilled from `targets` `[m, k]` on the public examples."""


class OwnModel(Around):
    """The objective `inner` on a model of `student`'s architecture, which the client owns.

    A client that keeps no model begins each round at the public parameters `start` `[p]`, as a
    client does in its first round. The state of a client is its model, followed by zeros.
    """

    compression: SkipValidation[Predictions]
    student: SkipValidation[Student]
    start: SkipValidation[Tensor]
    width: int
    """Length of a client's state: 0, or the largest number of parameters of all architectures."""

    def state_length(self, d: int) -> int:
        """Returns the number of values that each client keeps, the same for all architectures."""
        return self.width

    def initial_client_state(self, broadcast: Broadcast) -> Tensor:
        return self._padded(self.start[None])[0]

    def origin(self, broadcast: Broadcast, state: Tensor | None, measured: Tensor | None) -> Tensor:
        models = self.start[None] if state is None else state[:, : len(self.start)]
        targets = self.compression.targets(broadcast)
        distilled = self.compression.distilled(self.student, models, targets)
        return distilled[0] if state is None else distilled

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        rows = self.compression.rows(self.student.outputs(w), broadcast)
        return rows, None if state is None else self._padded(w)

    def _padded(self, models: Tensor) -> Tensor:
        """Returns models `[c, p]`, followed by zeros: `[c, width]`."""
        return torch.nn.functional.pad(models, (0, self.width - models.shape[1]))
