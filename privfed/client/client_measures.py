"""Client-side evaluation: each client's measures of a model on its own held-out examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privfed.client.objective import Objective
from privfed.core.deferred import Tensor, torch
from privfed.core.vector import Indices, Layout
from privfed.data.federation import Federation
from privfed.metrics.groups import ExampleGroups
from privfed.metrics.measure_row import MeasureRow

if TYPE_CHECKING:
    from privfed.models.network import Network


class Measurement(Objective):
    """The objective of client-side evaluation, for rows of `length` values (`ClientMeasures`)."""

    length: int = 0

    def layout(self, d: int) -> Layout:
        return Layout((("measures", self.length),))


@dataclass(frozen=True)
class ClientMeasures:
    """Measures of a model on clients' held-out examples.

    Attributes:
      federation: the clients, with their held-out examples.
      network: the scored network; its vector [d] includes the parameters that stay with clients
        if `personal`.
      row: the measures, and their layout in a client's row.
      groups: assignment of examples to the groups that are measured separately.
      personal: whether each client scores its personal model.
    """

    federation: Federation
    network: Network
    row: MeasureRow
    groups: ExampleGroups
    personal: bool = False

    def rows(self, ids: Indices, params: Tensor, round: int) -> Tensor:
        """Returns the rows `[c, m]` of clients `ids` `[c]` for model `params` `[d]` in `round`.

        `params` may also be one model per client `[c, d]`. Labels are those of `round`, if they
        change over rounds. A client without held-out examples has a row of zeros.

        To the last bit, a client's row depends only on its own examples and the model. Clients are
        scored one by one, because kernels that process several at once round differently, and a
        predicted class may depend on the rounding.
        """
        federation = self.federation.at(round)
        models = params.expand(len(ids), -1)
        rows = [self._row(federation, *each) for each in zip(ids, models, strict=True)]
        return torch.stack(rows) if rows else params.new_zeros(0, self.row.length)

    def _row(self, federation: Federation, client: int, params: Tensor) -> Tensor:
        start, end = federation.offsets[client : client + 2]
        if start == end:
            return params.new_zeros(self.row.length)
        examples = federation.examples.take(np.arange(start, end))
        scored = self.network.scored(params, examples)
        vectors = torch.cat([self.row.of_examples(outputs, y) for outputs, y in scored])
        groups = self.groups.of(examples.x, examples.y)
        return self.row.of_clients(vectors, np.array([0, end - start]), groups)[0].to(params)
