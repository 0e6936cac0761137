"""How clients score a model: on the examples that each of them holds back, one row per client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from privfed.data.federation import Federation
from privfed.measures.groups import ExampleGroups
from privfed.measures.measure_row import MeasureRow
from privfed.models.network import Network
from privfed.vector import Indices


@dataclass(frozen=True)
class ClientMeasures:
    """`federation` has the examples that clients score on, and `row` what they make of them."""

    federation: Federation
    network: Network
    row: MeasureRow
    groups: ExampleGroups

    def rows(self, ids: Indices, params: Tensor, round: int) -> Tensor:
        """The rows `[c, m]` of clients `ids` `[c]` about the model `params` `[d]` in `round`.

        A client's row follows from its own examples and the model alone.
        """
        federation = self.federation.at(round)
        offsets = np.concatenate([[0], np.cumsum(federation.sizes(ids))])
        places = np.repeat(federation.offsets[ids] - offsets[:-1], np.diff(offsets))
        examples = federation.examples.take(places + np.arange(offsets[-1]))
        if not len(examples):
            return params.new_zeros(len(ids), self.row.length)
        scored = self.network.scored(params, examples)
        vectors = torch.cat([self.row.of_examples(outputs, y) for outputs, y in scored])
        groups = self.groups.of(examples.x, examples.y)
        return self.row.of_clients(vectors, offsets, groups).to(params)
